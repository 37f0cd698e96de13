// Background export of checkpoints to Hugging Face format: a thread reads each saved checkpoint
// back and converts it, so that no rank waits and the layout does not matter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge/hf_model.h"
#include "models/config.h"

namespace bev {

class BackgroundHfExport {
 public:
  // `folder` will hold the latest checkpoint and is replaced atomically; `files` are added to it.
  BackgroundHfExport(std::string folder, ModelConfig model, std::vector<ExportFile> files);
  // Waits for the export in progress.
  ~BackgroundHfExport();
  BackgroundHfExport(const BackgroundHfExport&) = delete;
  BackgroundHfExport& operator=(const BackgroundHfExport&) = delete;

  // Queues a saved step: it is exported after the one in progress, unless a later one replaces it.
  // A failure is logged as a warning and does not stop the run.
  void add(const std::string& step_folder);
  // Waits until the last step added is exported; throws its Error if that failed.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
