#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/step_folders.h"
#include "tests/checkpoint/saved_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_program.h"

namespace bev::test {
namespace {

// The program in docs/checkpoint-format.md, which needs only json and struct, reads the same values
// as we do.
TEST(CheckpointFormat, APageOfPythonReadsIt) {
  TempFolder folder;
  if (run_shell(folder, "python3 --version").code != 0) GTEST_SKIP() << "no python3";
  std::string docs = read_file(BEV_SOURCE_DIR "/docs/checkpoint-format.md");
  std::size_t begin = docs.find("```python\n");
  ASSERT_NE(begin, std::string::npos);
  begin += std::string_view("```python\n").size();
  folder.write("reader.py", docs.substr(begin, docs.find("```", begin) - begin));
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    SCOPED_TRACE(name_of(dtype));
    std::string saved = folder.path(name_of(dtype));
    SavedRun run{.layout = "tp2,pp2,dp2zero1", .dtype = dtype, .save = saved};
    EXPECT_EQ(train(run).saved.problem, "");
    Outcome outcome = run_shell(folder, "python3 reader.py " + step_folder(saved, 3));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    NamedTensors ours = saved_tensors(saved, 3), theirs;
    nlohmann::json json = nlohmann::json::parse(outcome.out);
    for (const auto& [name, values] : json.items()) {
      theirs[name] = values.get<std::vector<double>>();
    }
    EXPECT_GT(ours.size(), 10u);
    EXPECT_TRUE(ours == theirs);
  }
}

TEST(CheckpointFormat, ANewerVersionIsRefused) {
  std::string text = manifest_json({});
  std::size_t at = text.find("\"version\": 1");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 12, "\"version\": 2");
  expect_error(ErrorKind::kInput,
               {"manifest.json: version 2; this program reads version 1; a newer one wrote it"},
               [&] { parse_manifest(text, "manifest.json"); });
}

}  // namespace
}  // namespace bev::test
