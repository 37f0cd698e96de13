// Scalar curves as a TensorBoard event file: TFRecord frames with masked CRC-32C around Event
// messages, whose few protobuf fields are encoded by hand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "train/report_file.h"

namespace bev {

// CRC-32C (Castagnoli) of the bytes.
std::uint32_t crc32c(std::string_view bytes);
// The masked (rotated and offset) form used by TFRecord.
std::uint32_t masked_crc32c(std::string_view bytes);

class TensorBoardWriter {
 public:
  // Creates the folder and a file events.out.tfevents.<seconds>.<host>.<pid>.<n> in it. Failures to
  // write are warnings; see ReportFile.
  explicit TensorBoardWriter(const std::string& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // TensorBoard stores values as floats; NaN and Inf are allowed.
  void scalar(std::string_view tag, std::int64_t step, double value);
  void flush();
  const std::string& path() const { return file_->path(); }

 private:
  void add_record(std::string_view event);
  std::string pending_;
  std::unique_ptr<ReportFile> file_;
};

}  // namespace bev
