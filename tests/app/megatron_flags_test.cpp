// Every flag of Megatron-LM does what `help megatron` says: one test for each.
#include "app/megatron_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands/commands.h"
#include "app/help.h"
#include "app/megatron_tables.h"
#include "app/options.h"
#include "app/run_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/text.h"
#include "tests/app/megatron_rows.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::string_view kTiny =
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 128 --seq-length 64 "
    "--micro-batch-size 1 --train-iters 10 --device cpu";

// A folder with the files that rows name.
class Files {
 public:
  Files() {
    folder_.write("gpt2-vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
    folder_.write("gpt2-merges.txt", "#version: 0.2\na b\n");
    folder_.write("ranks.tiktoken", "YQ== 0\nYg== 1\nYWI= 2\n");
    folder_.write("specials.json", R"({"<|endoftext|>": 3})");
    folder_.write("words", "{}");
  }

  std::vector<std::string> words(std::string_view text) const {
    std::vector<std::string> out;
    for (std::string& word : split(text, ' ')) {
      replace(word, "GOLDEN", BEV_SOURCE_DIR "/tests/golden");
      replace(word, "TEMP", folder_.path());
      if (!word.empty()) out.push_back(std::move(word));
    }
    return out;
  }

 private:
  static void replace(std::string& word, std::string_view from, const std::string& to) {
    if (std::size_t at = word.find(from); at != word.npos) word.replace(at, from.size(), to);
  }
  TempFolder folder_;
};

// What `bevatron train WORDS` prints.
std::string train(const Files& files, const std::string& words) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::string problem;
  try {
    run_command(find_command("train"), files.words(words));
  } catch (const Error& error) {
    problem = error.what();
  }
  testing::internal::GetCapturedStderr();
  std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(problem, "") << "train " << words;
  return out;
}

json dry_run(const Files& files, std::string_view words) {
  std::string out = train(files, concat(kTiny, " ", words, " --dry-run --json"));
  return json::parse(out, nullptr, false);
}

// "--adam-beta1 0.8" is adam_beta1.
std::string test_name(std::string_view words) {
  std::string name(words.substr(2, words.find(' ') - 2));
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string name_of_row(const testing::TestParamInfo<ActingRow>& info) {
  return test_name(info.param.words);
}

class ActingFlag : public testing::TestWithParam<ActingRow> {};

TEST_P(ActingFlag, ChangesTheDryRun) {
  Files files;
  const ActingRow& row = GetParam();
  json before = dry_run(files, row.beside),
       after = dry_run(files, concat(row.beside, " ", row.words));
  EXPECT_TRUE(before.is_object());
  EXPECT_NE(before, after);
}

INSTANTIATE_TEST_SUITE_P(Megatron, ActingFlag, testing::ValuesIn(kActingRows), name_of_row);

// The rows of `help megatron` with a status.
std::vector<MegatronFlag> flags_with(std::initializer_list<MegatronStatus> statuses) {
  MegatronTable table = megatron_table();
  std::erase_if(table.flags, [&](const MegatronFlag& flag) {
    return std::ranges::find(statuses, flag.status) == statuses.end();
  });
  return table.flags;
}

// The flag as a script gives it, with as many values as it takes.
std::string given(const ForeignFlag& flag) {
  using Values = ForeignFlag::Values;
  const char* values = flag.values == Values::kNone  ? ""
                       : flag.values == Values::kOne ? " 1"
                                                     : " 1 2";
  return concat("--", flag.name, values);
}

// A command that has the flag as one of another program.
struct ForeignList {
  explicit ForeignList(const std::string& name) {
    for (const char* command : {"train", "preprocess"}) {
      call = find_command(command).call({});
      list = std::make_unique<FieldList>();
      call->fields(*list);
      if ((flag = list->find_foreign(name)) != nullptr) break;
    }
  }
  std::unique_ptr<CommandCall> call;
  std::unique_ptr<FieldList> list;
  const ForeignFlag* flag = nullptr;
};

class IdleFlag : public testing::TestWithParam<MegatronFlag> {};

// With its values it is one note, and sets nothing.
TEST_P(IdleFlag, ChangesNothing) {
  ForeignList at(GetParam().name);
  ASSERT_NE(at.flag, nullptr);
  Options options = parse_options(*at.list, split(given(*at.flag), ' '));
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_THAT(options.settings(), IsEmpty());
  EXPECT_THAT(options.notes(),
              testing::ElementsAre(concat("--", GetParam().name, ": ", GetParam().reason)));
}

std::string name_of_flag(const testing::TestParamInfo<MegatronFlag>& info) {
  return test_name("--" + info.param.name);
}

INSTANTIATE_TEST_SUITE_P(Megatron, IdleFlag,
                         testing::ValuesIn(flags_with({MegatronStatus::kNoSwitch})), name_of_flag);

class RefusedFlag : public testing::TestWithParam<MegatronFlag> {};

TEST_P(RefusedFlag, SaysWhatToDo) {
  ForeignList at(GetParam().name);
  ASSERT_NE(at.flag, nullptr);
  Options options = parse_options(*at.list, split(given(*at.flag), ' '));
  EXPECT_THAT(options.problems(),
              testing::ElementsAre(concat("--", GetParam().name, ": ", GetParam().reason)));
  // Another command may have a flag of this name.
  EXPECT_THAT(flag_help(GetParam().name),
              testing::AnyOf(HasSubstr(GetParam().reason), HasSubstr("taken by")));
}

INSTANTIATE_TEST_SUITE_P(Megatron, RefusedFlag,
                         testing::ValuesIn(flags_with({MegatronStatus::kRenamed,
                                                       MegatronStatus::kRefused})),
                         name_of_flag);

class PreprocessFlag : public testing::TestWithParam<std::string> {};

TEST_P(PreprocessFlag, IsThere) {
  std::unique_ptr<CommandCall> call = find_command("preprocess").call({});
  FieldList list;
  call->fields(list);
  EXPECT_NE(list.find(GetParam()), nullptr);
}

INSTANTIATE_TEST_SUITE_P(
    Megatron, PreprocessFlag,
    testing::ValuesIn(split("input json-keys output-prefix append-eod split-sentences "
                            "keep-newlines workers partitions",
                            ' ')),
    [](const auto& row) { return test_name("--" + row.param); });

// All flags that are not needed, in one run: the same plan, and the same losses of two steps.
TEST(MegatronFlags, TogetherIdleOnesChangeNoMetric) {
  RunConfig run;
  FieldList list;
  run.fields(list);
  std::string idle;
  for (const ForeignFlag& flag : list.foreign_flags()) {
    if (flag.taken) idle += " " + given(flag);
  }
  Files files;
  EXPECT_EQ(dry_run(files, ""), dry_run(files, idle));
  auto losses = [&](const std::string& more) {
    TempFolder folder;
    std::string path = folder.path("metrics.jsonl");
    train(files, concat(kTiny,
                        " --train-iters 2 --mock-data --progress=false --loss-svg= "
                        "--metrics-out ",
                        path, more));
    std::vector<double> out;
    for (const std::string& line : split(read_file(path), '\n')) {
      if (!line.empty()) out.push_back(json::parse(line)["loss"]);
    }
    return out;
  };
  std::vector<double> plain = losses("");
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain, losses(idle));
}

TEST(MegatronFlags, EachHasOneRowAndATest) {
  json table = json::parse(megatron_json());
  EXPECT_THAT(table["unknown"], IsEmpty());
  std::set<std::string> tests, names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      tests.insert(concat(suite.name(), ".", suite.GetTestInfo(j)->name()));
    }
  }
  std::map<std::string, int> counts;
  for (const json& flag : table["flags"]) {
    SCOPED_TRACE(flag.dump());
    EXPECT_TRUE(tests.contains(flag["test"]));
    EXPECT_TRUE(names.insert(flag["name"]).second);
    bool acts = flag["status"] == "acts", renamed = flag["status"] == "renamed";
    EXPECT_EQ(flag["maps_to"] != "", acts || renamed);
    EXPECT_EQ(flag["reason"] == "", acts);
    ++counts[flag["status"]];
  }
  // A few of each kind, and none of Megatron's flags is missing.
  EXPECT_GT(counts["acts"], 280);
  EXPECT_GT(table["flags"].size(), 900u);
  for (const char* name : {"--lr", "--moe-grouped-gemm", "--yaml-cfg", "--mamba-state-dim",
                           "--override-opt_param-scheduler"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// A row for each flag that acts, and none for others.
TEST(MegatronFlags, RowsAreThoseThatAct) {
  std::set<std::string> rows, acting;
  for (const ActingRow& row : kActingRows) EXPECT_TRUE(rows.insert(test_name(row.words)).second);
  for (const MegatronFlag& flag : flags_with({MegatronStatus::kActs})) {
    if (flag.maps_to.starts_with("--")) acting.insert(test_name("--" + flag.name));
  }
  EXPECT_EQ(rows, acting);
}

TEST(MegatronFlags, TakeAsManyValuesAsInMegatron) {
  RunConfig run;
  FieldList list;
  run.fields(list);
  auto problems = [&](const char* words) {
    return parse_options(list, split(words, ' ')).problems();
  };
  EXPECT_THAT(problems("--wandb-project x --manual-gc --lr 1"), IsEmpty());
  EXPECT_THAT(problems("--cuda-graph-modules attn mlp --manual-gc true --lr 2"), IsEmpty());
  EXPECT_EQ(run.optim.lr, 2);
  EXPECT_THAT(problems("--manual-gc 3"),
              testing::ElementsAre(HasSubstr("'3': belongs to no flag")));
  EXPECT_THAT(problems("--wandb-project x y"),
              testing::ElementsAre(HasSubstr("'y': belongs to no flag")));
}

TEST(MegatronFlags, HelpHasThemForPeopleAndInTheDocument) {
  std::vector<std::string> words = {"megatron"};
  std::string text = help_for(words, false);
  EXPECT_THAT(text, HasSubstr("--yaml-cfg\n      give --config FILE.yaml"));
  for (const std::string& line : split(text, '\n')) EXPECT_LE(line.size(), 100u) << line;
  words.push_back("--json");
  EXPECT_EQ(help_for(words, false), megatron_json());
  std::string document = read_file(BEV_SOURCE_DIR "/docs/from-megatron.md");
  std::size_t at = document.find("## Every flag\n");
  ASSERT_NE(at, document.npos);
  EXPECT_EQ(document.substr(at), megatron_markdown())
      << "put what `build/bevatron help megatron --markdown` prints at the end of the file";
}

}  // namespace
}  // namespace bev
