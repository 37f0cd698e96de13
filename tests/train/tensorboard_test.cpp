#include "train/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace bev {
namespace {

std::uint64_t fixed(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes.at(at + i))} << (8 * i);
  }
  return value;
}

std::uint64_t varint(std::string_view bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    auto byte = static_cast<unsigned char>(bytes.at(at++));
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
}

// Payloads of a TFRecord file, with all checksums verified.
std::vector<std::string> records(const std::string& content) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < content.size();) {
    std::string_view length = std::string_view(content).substr(at, 8);
    std::uint64_t size = fixed(length, 0, 8);
    EXPECT_EQ(fixed(content, at + 8, 4), masked_crc32c(length));
    found.push_back(content.substr(at + 12, size));
    EXPECT_EQ(fixed(content, at + 12 + size, 4), masked_crc32c(found.back()));
    at += size + 16;
  }
  return found;
}

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version, tag;
  float value = 0;
};

// Parses an Event, descending into nested messages that hold our fields.
void parse(std::string_view bytes, const std::string& path, Event& event) {
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t key = varint(bytes, at);
    std::string name = path + "." + std::to_string(key >> 3);
    if ((key & 7) == 0) {
      std::uint64_t value = varint(bytes, at);
      if (name == ".2") event.step = static_cast<std::int64_t>(value);
    } else if ((key & 7) == 1) {
      if (name == ".1") event.wall_time = std::bit_cast<double>(fixed(bytes, at, 8));
      at += 8;
    } else if ((key & 7) == 5) {
      auto bits = static_cast<std::uint32_t>(fixed(bytes, at, 4));
      if (name == ".5.1.2") event.value = std::bit_cast<float>(bits);
      at += 4;
    } else {
      std::uint64_t size = varint(bytes, at);
      std::string_view inner = bytes.substr(at, size);
      if (name == ".3") event.version = inner;
      if (name == ".5.1.1") event.tag = inner;
      if (name == ".5" || name == ".5.1") parse(inner, name, event);
      at += size;
    }
  }
}

TEST(TensorBoard, ChecksumsMatchKnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(masked_crc32c(""), 0xA282EAD8u);
}

TEST(TensorBoard, ReadsBackWhatItWrote) {
  std::string folder = testing::TempDir() + "tensorboard_test/" +
                       std::to_string(::testing::UnitTest::GetInstance()->random_seed());
  TensorBoardWriter writer(folder);
  EXPECT_NE(writer.path().find("/events.out.tfevents."), std::string::npos);
  EXPECT_EQ(records(read_file(writer.path())).size(), 1u);  // readable from the start

  writer.scalar("lm loss", 1, 10.5);
  writer.scalar("lm loss vs samples", 5'000'000'000, 0.1);
  writer.scalar("grad-norm", 300, std::numeric_limits<double>::quiet_NaN());
  writer.flush();

  std::vector<Event> events;
  for (const std::string& record : records(read_file(writer.path())))
    parse(record, "", events.emplace_back());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.7e9);
  EXPECT_EQ(events[1].tag, "lm loss");
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].value, 10.5f);
  EXPECT_GE(events[1].wall_time, events[0].wall_time);
  EXPECT_EQ(events[2].tag, "lm loss vs samples");
  EXPECT_EQ(events[2].step, 5'000'000'000);
  EXPECT_EQ(events[2].value, 0.1f);
  EXPECT_EQ(events[3].step, 300);
  EXPECT_TRUE(std::isnan(events[3].value));
}

TEST(TensorBoard, WritersInOneFolderDoNotShareAFile) {
  std::string folder = testing::TempDir() + "tensorboard_test/shared";
  TensorBoardWriter a(folder), b(folder);
  EXPECT_NE(a.path(), b.path());
}

TEST(TensorBoard, FlushesByItselfAndAtTheEnd) {
  std::string path;
  {
    TensorBoardWriter writer(testing::TempDir() + "tensorboard_test/large");
    path = writer.path();
    for (int i = 0; i < 3000; ++i) writer.scalar("learning-rate", i, i);
    EXPECT_GT(read_file(path).size(), 60000u);
  }
  EXPECT_EQ(records(read_file(path)).size(), 3001u);
}

TEST(TensorBoard, UnwritableFolderIsAWarning) {
  testing::internal::CaptureStderr();
  {
    TensorBoardWriter writer("/proc/nothing/here");
    writer.scalar("lm loss", 1, 10.5);
    EXPECT_EQ(writer.path(), "");
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("warning: --tensorboard-dir /proc/nothing"),
            std::string::npos);
}

}  // namespace
}  // namespace bev
