// Progress of tokenization on stderr: a live line on a terminal, else a line every few seconds.
// Stops the work at a signal.
#pragma once

#include <cstdint>
#include <string>

#include "base/stop_signal.h"
#include "data/preprocess/preprocess.h"

namespace bev {

class PreprocessReport : public PreprocessObserver {
 public:
  // The signal must outlive the report.
  explicit PreprocessReport(const StopSignal& signal);

  // Logs it; processes other than the first are `silent` about what all of them find.
  void found(const TextInputs& inputs) override;
  void silence() { silent_ = true; }
  void advanced(const PreprocessProgress& progress) override;
  // Logs the first few, then only counts.
  void skipped(const std::string& what) override;
  bool stop() const override { return signal_.received() != 0; }

  // Input bytes, duration and throughput of this run; "" if there was nothing to do.
  std::string summary() const;

 private:
  const StopSignal& signal_;
  bool terminal_, silent_ = false, started_ = false;
  double started_at_ = 0, reported_at_ = 0;
  std::int64_t bytes_before_ = 0;  // processed by earlier runs
  std::int64_t skipped_ = 0;
  PreprocessProgress progress_;
};

// "37%  12.3 MB/s, 4.1k documents/s, 2m 03s left"; `seconds` and `bytes` count this run only.
std::string preprocess_progress_text(const PreprocessProgress& progress, std::int64_t bytes,
                                     double seconds);

}  // namespace bev
