#include "bridge/weight_files.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file with U8 tensors that each hold their own name.
void write_shard(const std::string& path, const std::vector<std::string>& names) {
  std::vector<TensorSpec> tensors;
  for (const std::string& name : names) {
    tensors.push_back({name, Dtype::kU8, {static_cast<std::int64_t>(name.size())}});
  }
  SafetensorsWriter writer(path, tensors);
  for (const std::string& name : names) writer.write(name, bytes_of(name));
  writer.commit();
}

void expect_refused(const TempFolder& folder, std::vector<std::string> parts,
                    ErrorKind kind = ErrorKind::kInput) {
  parts.push_back(folder.path());
  expect_error(kind, parts, [&] { WeightFiles files(folder.path()); });
}

constexpr char kIndex[] = "model.safetensors.index.json";

TEST(WeightFiles, ReadsASingleFile) {
  TempFolder folder;
  write_shard(folder.path("model.safetensors"), {"b.weight", "a.weight"});
  folder.write(kIndex, "not looked at");
  WeightFiles files(folder.path() + "/");
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a.weight", "b.weight"}));
  EXPECT_TRUE(files.contains("a.weight"));
  EXPECT_FALSE(files.contains("a.weigh"));
  EXPECT_EQ(text_of(files.tensor("b.weight").bytes), "b.weight");
  expect_error(ErrorKind::kInput, {folder.path(), "'a.weights'", "nearest is 'a.weight'"},
               [&] { files.tensor("a.weights"); });
  expect_error(ErrorKind::kInput, {"'zzzzzzzz' among 2"}, [&] { files.tensor("zzzzzzzz"); });
}

TEST(WeightFiles, ReadsShardsThroughTheIndex) {
  TempFolder folder;
  write_shard(folder.path("one.safetensors"), {"a", "cc", "unlisted"});
  write_shard(folder.path("two.safetensors"), {"bbb", "a"});
  folder.write(
      kIndex,
      R"({"metadata":{"total_size":1.5,"x":[{}]},)"
      R"("weight_map":{"cc":"one.safetensors","bbb":"two.safetensors","a":"one.safetensors"}})");
  WeightFiles files(folder.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "bbb", "cc"}));
  for (const std::string& name : files.names()) EXPECT_EQ(text_of(files.tensor(name).bytes), name);
  EXPECT_FALSE(files.contains("unlisted"));

  WeightFiles moved = std::move(files);
  EXPECT_EQ(text_of(moved.tensor("bbb").bytes), "bbb");
}

TEST(WeightFiles, NamesMissingShardsAndTensors) {
  TempFolder folder;
  write_shard(folder.path("one.safetensors"), {"a"});
  folder.write(
      kIndex,
      R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"}})");
  expect_refused(folder, {"2 of 3 shards missing", "two.safetensors", "three.safetensors"});
  folder.write(kIndex, R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
  expect_refused(folder, {"not in their shard", "'b' (one.safetensors)"});
  folder.write("one.safetensors", "broken");
  expect_refused(folder, {"one.safetensors", "truncated"});
}

TEST(WeightFiles, RefusesBadIndexes) {
  TempFolder folder;
  write_shard(folder.path("one.safetensors"), {"a"});
  for (const char* index :
       {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}", "null",
        "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":\"\"}}", "{\"weight_map\":{\"a\":NaN}}",
        "{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"../one.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "{\"weight_map\":{\"a\":\"..\"}}",
        "{\"weight_map\":{\"a\":\"one.safetensors\\u0000x\"}}"}) {
    folder.write(kIndex, index);
    expect_refused(folder, {kIndex});
  }
}

TEST(WeightFiles, SaysWhatToDoWithoutSafetensors) {
  expect_error(ErrorKind::kInput, {"/nowhere", "no such folder"},
               [] { WeightFiles files("/nowhere"); });
  TempFolder folder;
  expect_refused(folder, {"no weights"});
  std::string file = folder.write("model-00001-of-00002.safetensors", "x");
  expect_refused(folder, {"model-00001-of-00002.safetensors", kIndex});
  expect_error(ErrorKind::kInput, {"not a folder"}, [&] { WeightFiles files(file); });
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"}) {
    TempFolder other;
    other.write("config.json", "{}");
    other.write(name, "PK");
    expect_refused(other, {name, "convert to safetensors first"});
  }
}

// Six tensors of mixed size, written in chunks of at most three bytes.
std::vector<TensorSpec> some_tensors() {
  return {{"a", Dtype::kU8, {4}}, {"b", Dtype::kU8, {5}},    {"huge", Dtype::kU8, {50}},
          {"c", Dtype::kU8, {5}}, {"none", Dtype::kU8, {0}}, {"d", Dtype::kU8, {10}}};
}
void write_all(WeightFilesWriter& writer, char offset = 0) {
  for (const TensorSpec& tensor : writer.tensors()) {
    std::string data(tensor.bytes(), static_cast<char>(tensor.name[0] + offset));
    for (std::size_t at = 0; at < data.size(); at += 3) {
      writer.write(tensor.name, bytes_of(std::string_view(data).substr(at, 3)));
    }
  }
}
void export_to(const std::string& folder, char offset = 0) {
  WeightFilesWriter writer(folder, some_tensors());
  write_all(writer, offset);
  writer.write_text("config.json", "{}");
  writer.commit();
}

TEST(WeightFilesWriter, WritesOneFile) {
  TempFolder folder;
  export_to(folder.path("new/deep/model/"));
  EXPECT_EQ(list_directory(folder.path("new/deep/model")),
            (std::vector<std::string>{"config.json", "model.safetensors"}));
  EXPECT_EQ(list_directory(folder.path("new/deep")), std::vector<std::string>{"model"});
  WeightFiles files(folder.path("new/deep/model"));
  EXPECT_EQ(text_of(files.tensor("b").bytes), "bbbbb");
  EXPECT_EQ(files.names().size(), 6u);
}

TEST(WeightFilesWriter, CutsShardsWithAnIndex) {
  TempFolder folder;
  WeightFilesWriter writer(folder.path("model"), some_tensors(), 10);
  write_all(writer);
  writer.commit();
  // a b | huge | c none | d: full to the limit, never over it but for a tensor that is larger
  // alone.
  EXPECT_EQ(list_directory(folder.path("model")),
            (std::vector<std::string>{
                "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors", kIndex}));
  auto index = nlohmann::json::parse(read_file(folder.path(std::string("model/") + kIndex)));
  EXPECT_EQ(index["metadata"]["total_size"], 74);
  EXPECT_EQ(index["weight_map"]["huge"], "model-00002-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["none"], "model-00003-of-00004.safetensors");
  WeightFiles files(folder.path("model"));
  EXPECT_EQ(files.names().size(), 6u);
  for (const TensorSpec& tensor : some_tensors()) {
    EXPECT_EQ(text_of(files.tensor(tensor.name).bytes),
              std::string(tensor.bytes(), tensor.name[0]));
  }
}

TEST(WeightFilesWriter, WritesTensorsWithoutElements) {
  TempFolder folder;
  WeightFilesWriter writer(folder.path("model"), {{"none", Dtype::kF32, {0}}});
  writer.commit();
  EXPECT_TRUE(WeightFiles(folder.path("model")).contains("none"));
}

TEST(WeightFilesWriter, ReplacesEmptyFoldersAndEarlierExports) {
  TempFolder folder;
  std::filesystem::create_directory(folder.path("model"));
  export_to(folder.path("model"));
  folder.write("model/merges.txt", "of the old export");
  WeightFiles old(folder.path("model"));  // being read while replaced, as `convert` in place does
  export_to(folder.path("model"), 1);
  EXPECT_EQ(text_of(old.tensor("a").bytes), "aaaa");
  EXPECT_EQ(text_of(WeightFiles(folder.path("model")).tensor("a").bytes), "bbbb");
  EXPECT_EQ(list_directory(folder.path("model")).size(), 2u);
  EXPECT_EQ(list_directory(folder.path()), std::vector<std::string>{"model"});
}

TEST(WeightFilesWriter, FollowsALinkToTheFolder) {
  TempFolder folder;
  std::filesystem::create_directory(folder.path("real"));
  ASSERT_EQ(symlink("real", folder.path("link").c_str()), 0);
  export_to(folder.path("link"));
  EXPECT_TRUE(path_exists(folder.path("real/model.safetensors")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
}

TEST(WeightFilesWriter, RefusesFoldersThatAreNotItsOwn) {
  TempFolder folder;
  folder.write("notes/thesis.tex", "precious");
  folder.write("project/config.json", "{}");
  folder.write("project/src/main.py", "precious");
  std::string file = folder.write("file", "precious");
  expect_error(ErrorKind::kConfig, {"notes", "thesis.tex", "empty folder"},
               [&] { export_to(folder.path("notes")); });
  folder.write("mixed/config.json", "{}");
  folder.write("mixed/README.md", "precious");
  expect_error(ErrorKind::kConfig, {"mixed", "README.md", "would remove"},
               [&] { export_to(folder.path("mixed")); });
  expect_error(ErrorKind::kConfig, {"project", "src"}, [&] { export_to(folder.path("project")); });
  expect_error(ErrorKind::kConfig, {"file", "not a folder"}, [&] { export_to(file); });
  expect_error(ErrorKind::kConfig, {"cannot be replaced"}, [] { check_export_folder("/"); });
  expect_error(ErrorKind::kConfig, {"empty"}, [] { check_export_folder(""); });
  EXPECT_EQ(read_file(folder.path("notes/thesis.tex")), "precious");
  EXPECT_EQ(list_directory(folder.path()),
            (std::vector<std::string>{"file", "mixed", "notes", "project"}));
}

TEST(WeightFilesWriter, ChecksAgainWhenItCommits) {
  TempFolder folder;
  {
    WeightFilesWriter writer(folder.path("model"), some_tensors());
    write_all(writer);
    folder.write("model/thesis.tex", "written meanwhile");
    expect_error(ErrorKind::kConfig, {"thesis.tex"}, [&] { writer.commit(); });
  }
  EXPECT_EQ(list_directory(folder.path()), std::vector<std::string>{"model"});
  EXPECT_EQ(list_directory(folder.path("model")), std::vector<std::string>{"thesis.tex"});
}

TEST(WeightFilesWriter, LeavesNothingWithoutCommit) {
  TempFolder folder;
  export_to(folder.path("model"));
  {
    WeightFilesWriter writer(folder.path("model"), some_tensors(), 10);
    writer.write("a", bytes_of("xxxx"));
    writer.write_text("config.json", "{\"new\":1}");
    expect_error(ErrorKind::kInternal, {"before all tensors"}, [&] { writer.commit(); });
  }
  EXPECT_EQ(list_directory(folder.path()), std::vector<std::string>{"model"});
  EXPECT_EQ(text_of(WeightFiles(folder.path("model")).tensor("a").bytes), "aaaa");
  EXPECT_EQ(read_file(folder.path("model/config.json")), "{}");
}

TEST(WeightFilesWriter, RemovesWhatADeadProcessLeft) {
  TempFolder folder;
  folder.write(concat("model.tmp-", ::getpid(), "/junk/x"), "left");
  export_to(folder.path("model"));
  EXPECT_EQ(list_directory(folder.path()), std::vector<std::string>{"model"});
  EXPECT_EQ(list_directory(folder.path("model")).size(), 2u);
}

// A file size limit stands in for a full disk: write() fails in the middle of a tensor.
TEST(WeightFilesWriter, FullDiskLeavesTheOldExport) {
  TempFolder folder;
  export_to(folder.path("model"));
  auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::string part(60'000, 'x');
  expect_error(ErrorKind::kIo, {"cannot write", "model.safetensors"}, [&] {
    WeightFilesWriter writer(folder.path("model"), {{"big", Dtype::kU8, {20'000'000}}});
    for (int i = 0; i < 300; ++i) writer.write("big", bytes_of(part));
  });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(list_directory(folder.path()), std::vector<std::string>{"model"});
  EXPECT_EQ(text_of(WeightFiles(folder.path("model")).tensor("a").bytes), "aaaa");
}

TEST(WeightFilesWriter, RefusesWrongUse) {
  TempFolder folder;
  auto declare = [&](std::vector<TensorSpec> tensors, std::size_t bytes) {
    WeightFilesWriter writer(folder.path("model"), tensors, bytes);
  };
  expect_error(ErrorKind::kInternal, {"no tensors"}, [&] { declare({}, 10); });
  expect_error(ErrorKind::kConfig, {"above 0"}, [&] { declare(some_tensors(), 0); });
  expect_error(ErrorKind::kInternal, {"twice"}, [&] {
    declare({{"a", Dtype::kU8, {9}}, {"a", Dtype::kU8, {9}}}, 10);
  });
  EXPECT_TRUE(list_directory(folder.path()).empty());
}

}  // namespace
}  // namespace bev
