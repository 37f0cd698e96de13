// Scalar curves as a TensorBoard event file: TFRecord frames with masked CRC-32C around Event
// messages, whose few protobuf fields are encoded by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/append_file.h"

namespace bev {

// CRC-32C (Castagnoli) of the bytes.
std::uint32_t crc32c(std::string_view bytes);
// The masked (rotated and offset) form used by TFRecord.
std::uint32_t masked_crc32c(std::string_view bytes);

class TensorBoardWriter {
 public:
  // Creates the folder and a file events.out.tfevents.<seconds>.<host>.<pid>.<n> in it.
  explicit TensorBoardWriter(const std::string& folder);
  ~TensorBoardWriter();  // flushes, ignoring errors: call flush() if they matter

  // TensorBoard stores values as floats; NaN and Inf are allowed.
  void scalar(std::string_view tag, std::int64_t step, double value);
  void flush();
  const std::string& path() const { return file_.path(); }

 private:
  void add_record(std::string_view event);
  std::string pending_;
  AppendFile file_;
};

}  // namespace bev
