// Hugging Face's form of a run's checkpoints, made beside the training: what was saved is read
// again and converted, so that no rank waits and no layout matters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge/hf_model.h"
#include "models/config.h"

namespace bev {

class HfBeside {
 public:
  // `folder` will hold the last checkpoint, whole at any instant; `files` go beside its weights.
  HfBeside(std::string folder, ModelConfig model, std::vector<ExportFile> files);
  // Waits for the export under way.
  ~HfBeside();
  HfBeside(const HfBeside&) = delete;
  HfBeside& operator=(const HfBeside&) = delete;

  // A step that is saved: it is exported when the one under way is done, unless a later one has
  // come by then. A failure is told and ends nothing.
  void add(const std::string& step_folder);
  // Waits until the last step added is exported; Error when it could not be.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
