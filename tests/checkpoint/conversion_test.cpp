// Checkpoints written without a model: our own format and Megatron's torch_dist, with the same bits
// after any number of ends by force.
#include "checkpoint/convert/conversion.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/progress.h"
#include "checkpoint/megatron/distributed_files.h"
#include "checkpoint/megatron/written_tensors.h"
#include "checkpoint/step_folders.h"
#include "tests/checkpoint/faulty_storage.h"
#include "tests/checkpoint/saved_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

constexpr int kForever = std::numeric_limits<int>::max() / 2;
// So small that tensors are divided, and that there are many files.
constexpr PartSizes kSmall{.part_bytes = 2000, .file_bytes = 40000};

// A run of two iterations in f32, under a layout of several ranks.
struct Saved {
  TempFolder folder;
  ModelConfig model = tiny_gpt();
  std::unique_ptr<CheckpointReader> reader;

  Saved() {
    model.num_layers = 2;
    train({.model = model,
           .layout = "tp2,dp2zero1",
           .dtype = Dtype::kF32,
           .last = 2,
           .save = folder.path()});
    reader = std::make_unique<CheckpointReader>(find_step_folder(folder.path(), -1));
  }

  std::string write(Storage& storage, const std::string& out, bool megatron,
                    std::optional<Dtype> dtype = {}) {
    CheckpointState source(*reader);
    Conversion job{.source = source,
                   .model = model,
                   .about = reader->manifest(),
                   .dtype = dtype,
                   .storage = storage,
                   .out = out,
                   .threads = 2,
                   .sizes = kSmall};
    std::vector<std::string> left_out;
    std::string step = megatron ? write_torch_dist(job, {}, left_out) : write_own(job);
    EXPECT_EQ(left_out, std::vector<std::string>());
    return step;
  }
};

// Every tensor of the first folder has the same bits in the second.
void expect_same_bits(CheckpointReader& one, const std::string& other_folder) {
  CheckpointReader other(other_folder);
  EXPECT_EQ(other.verify(), std::vector<std::string>());
  for (const auto& [name, tensor] : one.manifest().tensors) {
    const GlobalTensor* found = other.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(*found, tensor) << name;
    std::vector<std::byte> a(static_cast<std::size_t>(tensor.shape.numel()) *
                             size_of(tensor.dtype)),
        b = a;
    one.read(name, whole_box(tensor.shape), tensor.dtype, a.data());
    other.read(name, whole_box(tensor.shape), tensor.dtype, b.data());
    EXPECT_EQ(a, b) << name;
  }
  EXPECT_EQ(one.manifest().state.iteration, other.manifest().state.iteration);
  EXPECT_EQ(one.manifest().state.updates, other.manifest().state.updates);
  EXPECT_EQ(one.manifest().state.consumed_samples, other.manifest().state.consumed_samples);
}

TEST(Conversions, KeepEveryBitInBothFormats) {
  Saved saved;
  TempFolder out;
  std::unique_ptr<Storage> disk = make_disk_storage();
  expect_same_bits(*saved.reader, saved.write(*disk, out.path("own"), false));
  expect_same_bits(*saved.reader, saved.write(*disk, out.path("megatron"), true));
}

TEST(Conversions, RoundWeightsAloneAndReadMasterWeightsInOtherTypes) {
  Saved saved;
  TempFolder out;
  std::unique_ptr<Storage> disk = make_disk_storage();
  CheckpointReader rounded(saved.write(*disk, out.path("bf16"), true, Dtype::kBf16));
  const std::string param = "decoder.final_layernorm.weight";
  EXPECT_EQ(rounded.find(param)->dtype, Dtype::kBf16);
  EXPECT_EQ(rounded.find("optimizer.exp_avg/" + param)->dtype, Dtype::kF32);
  std::vector<float> weights(static_cast<std::size_t>(rounded.find(param)->shape.numel())),
      main = weights;
  Box whole = whole_box(rounded.find(param)->shape);
  saved.reader->read(param, whole, Dtype::kF32, weights.data());
  rounded.read("optimizer.main/" + param, whole, Dtype::kF32, main.data());
  EXPECT_EQ(weights, main);
}

// Whatever operation is the last before the end, nothing looks whole that is not, and the next
// start finishes.
TEST(Conversions, GoOnAfterAnEndAtAnyOperation) {
  Saved saved;
  for (bool megatron : {false, true}) {
    TempFolder good;
    FaultyStorage counting(kForever, 0);
    std::string whole = saved.write(counting, good.path(), megatron);
    ASSERT_GT(counting.operations(), 100);
    // Some of the many writes, and nearly all operations after them.
    int last = counting.operations();
    for (int first = 0; first < last; first += first + 40 < last ? 61 : 3) {
      TempFolder out;
      FaultyStorage storage(first, kForever);
      EXPECT_THROW(saved.write(storage, out.path(), megatron), Error) << first;
      std::string step = join_path(out.path(), std::filesystem::path(whole).filename().native());
      if (holds_step(step)) {
        EXPECT_EQ(differing_files(whole, step), std::vector<std::string>{"/written.jsonl"});
      }
      std::unique_ptr<Storage> disk = make_disk_storage();
      EXPECT_EQ(saved.write(*disk, out.path(), megatron), step);
      EXPECT_EQ(differing_files(whole, step), std::vector<std::string>()) << first;
      EXPECT_EQ(list_directory(out.path()), list_directory(good.path())) << first;
    }
  }
}

TEST(Conversions, DoNotWriteTwiceWhatIsThere) {
  Saved saved;
  TempFolder out;
  FaultyStorage whole(kForever, 0);
  saved.write(whole, out.path("a"), true);
  FaultyStorage ended(whole.operations() - 8, kForever);
  EXPECT_THROW(saved.write(ended, out.path("b"), true), Error);
  FaultyStorage rest(kForever, 0);
  saved.write(rest, out.path("b"), true);
  EXPECT_LT(rest.operations(), whole.operations() / 3);
}

TEST(Conversions, RefuseFoldersThatHoldARun) {
  Saved saved;
  std::unique_ptr<Storage> disk = make_disk_storage();
  expect_error(ErrorKind::kConfig, {"holds iter_0000002 already"},
               [&] { saved.write(*disk, saved.folder.path(), true); });
}

// A torch_dist table of one tensor of four elements, whose parts may be wrong.
void write_table(const TempFolder& folder, Dtype named, const std::vector<Range>& ranges) {
  PlannedFile file{"__0_1.distcp", {}};
  WrittenFile written{file.name};
  std::string content;
  for (Range range : ranges) {
    Box box{Shape{range.begin}, Shape{range.end}};
    file.parts.push_back({"w", box, named, {}});
    std::vector<float> numbers(static_cast<std::size_t>(range.size()), 1.5f);
    std::span<const std::byte> elements = std::as_bytes(std::span(numbers));
    ArchiveFrame frame = tensor_archive(Dtype::kF32, {range.size()}, elements);
    std::string part = frame.before;
    part.append(reinterpret_cast<const char*>(elements.data()), elements.size());
    part += frame.after;
    written.lengths.push_back(part.size());
    content += part;
  }
  folder.write(file.name, content);
  folder.write(".metadata",
               distributed_metadata({{"w", {named, Shape{4}}}}, {file}, {written}, {}));
}

TEST(DistributedTables, ArePlayedBack) {
  TempFolder folder;
  write_table(folder, Dtype::kF32, {{0, 3}, {3, 4}});
  DistributedFiles files(folder.path());
  const ForeignTensor& tensor = files.tensors().at("w");
  ASSERT_EQ(tensor.chunks.size(), 2u);
  EXPECT_EQ(tensor.chunks[1].box, (Box{Shape{3}, Shape{4}}));
  EXPECT_EQ(files.verify(), std::vector<std::string>());
}

TEST(DistributedTables, WithPartsThatDoNotTileAreRefused) {
  const std::vector<std::vector<Range>> wrong = {
      {{0, 3}}, {{0, 2}, {1, 3}}, {{0, 2}, {1, 4}}, {{0, 5}}};
  for (const std::vector<Range>& ranges : wrong) {
    TempFolder folder;
    write_table(folder, Dtype::kF32, ranges);
    expect_error(ErrorKind::kInput, {".metadata", "w"},
                 [&] { DistributedFiles files(folder.path()); });
  }
}

TEST(DistributedTables, OfAnotherTypeThanTheDataAreRefused) {
  for (Dtype named : {Dtype::kBf16, Dtype::kF64, Dtype::kI32}) {
    TempFolder folder;
    write_table(folder, named, {{0, 4}});
    DistributedFiles files(folder.path());
    const ForeignChunk& chunk = files.tensors().at("w").chunks.front();
    Piece piece{chunk.box, chunk.box, 0, chunk.file, chunk.key};
    expect_error(ErrorKind::kInput, {"__0_1.distcp", "f32"},
                 [&] { files.open(piece, "w", named, 4); });
  }
}

TEST(Progress, SaysHowMuchIsDoneAndLeft) {
  EXPECT_EQ(progress_text({.done = 1'500'000'000, .total = 6'000'000'000, .seconds = 3}),
            "1.50 of 6.00 GB, 25%, 0.50 GB/s, 9 s left");
  // What an earlier start did says nothing about speed.
  EXPECT_EQ(progress_text({.done = 5'000'000'000,
                           .total = 6'000'000'000,
                           .skipped = 4'000'000'000,
                           .seconds = 1000}),
            "5.00 of 6.00 GB, 83%, 0.00 GB/s, 17 min left");
  EXPECT_EQ(progress_text({.done = 0, .total = 6'000'000'000}), "0.00 of 6.00 GB, 0%");
}

}  // namespace
}  // namespace bev::test
