#include "bridge/torch/pickle_writer.h"

#include <bit>
#include <limits>

#include "base/text.h"

namespace bev {

PickleWriter::PickleWriter() : out_("\x80\x02") {}

// Little-endian.
void PickleWriter::put(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
}

// Puts a reference if the value was written before.
bool PickleWriter::recall(const std::string& key) {
  auto found = known_.find(key);
  if (found == known_.end()) return false;
  bool small = found->second <= std::numeric_limits<std::uint8_t>::max();
  out_ += small ? 'h' : 'j';
  put(found->second, small ? 1 : 4);
  return true;
}

void PickleWriter::remember(const std::string& key) {
  auto number = static_cast<std::uint32_t>(known_.size());
  known_.emplace(key, number);
  bool small = number <= std::numeric_limits<std::uint8_t>::max();
  out_ += small ? 'q' : 'r';
  put(number, small ? 1 : 4);
}

void PickleWriter::none() { out_ += 'N'; }
void PickleWriter::boolean(bool value) { out_ += value ? '\x88' : '\x89'; }

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<std::uint8_t>::max()) {
    out_ += 'K';
    return put(static_cast<std::uint64_t>(value), 1);
  }
  if (value >= std::numeric_limits<std::int32_t>::min() &&
      value <= std::numeric_limits<std::int32_t>::max()) {
    out_ += 'J';
    return put(static_cast<std::uint64_t>(value), 4);
  }
  out_ += '\x8a';
  put(sizeof value, 1);
  put(static_cast<std::uint64_t>(value), sizeof value);
}

void PickleWriter::number(double value) {
  auto bits = std::bit_cast<std::uint64_t>(value);
  out_ += 'G';
  for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i));
}

void PickleWriter::text(std::string_view value) {
  std::string key = concat("text ", value);
  if (recall(key)) return;
  out_ += 'X';
  put(value.size(), 4);
  out_ += value;
  remember(key);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  std::string key = concat("global ", module, ".", name);
  if (recall(key)) return;
  out_ += concat("c", module, "\n", name, "\n");
  remember(key);
}

void PickleWriter::begin_dict() { out_ += "}("; }
void PickleWriter::end_dict() { out_ += 'u'; }
void PickleWriter::begin_list() { out_ += "]("; }
void PickleWriter::end_list() { out_ += 'e'; }
void PickleWriter::begin_tuple() { out_ += '('; }
void PickleWriter::end_tuple() { out_ += 't'; }

void PickleWriter::integers(std::span<const std::int64_t> values) {
  begin_tuple();
  for (std::int64_t value : values) integer(value);
  end_tuple();
}

void PickleWriter::begin_object(std::string_view module, std::string_view name) {
  global(module, name);
  out_ += ")\x81";
}
void PickleWriter::end_object() { out_ += 'b'; }

void PickleWriter::begin_call(std::string_view module, std::string_view name) {
  global(module, name);
}
void PickleWriter::end_call() { out_ += 'R'; }
void PickleWriter::persistent() { out_ += 'Q'; }

std::string PickleWriter::take() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace bev
