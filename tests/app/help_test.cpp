#include "app/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "models/families/family.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Help, ListsTheCommands) {
  std::string text = help_text();
  for (const Command* command : commands())
    EXPECT_THAT(text, HasSubstr(std::string(command->name)));
}

TEST(Help, OfACommandListsItsFlags) {
  std::string text = help_text(find_command("generate"));
  EXPECT_THAT(text, HasSubstr("  --top-p  number > 0 and <= 1\n"));
  EXPECT_THAT(text, HasSubstr("(default: 1234)"));
  EXPECT_THAT(text, Not(HasSubstr("--hidden-size")));
  EXPECT_THAT(help_text(find_command("train")), HasSubstr("--add-bias-linear, "
                                                          "--no-add-bias-linear, "
                                                          "--disable-bias-linear"));
}

TEST(Help, LinesFitATerminal) {
  std::string text = help_text(find_command("train"));
  std::size_t begin = text.find("\nmodel:");
  for (std::size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
  }
}

TEST(Help, AnUnknownCommandSuggestsTheNearest) {
  expect_error(ErrorKind::kConfig, {"'trian' is not a command; did you mean train?"},
               [] { find_command("trian"); });
  expect_error(
      ErrorKind::kConfig,
      {"there are train, rl, score, generate, embed, ", "bench serve, convert, checkpoint verify"},
      [] { find_command("xyzzyxyzzy"); });
}

TEST(Help, CommandsMayHaveTwoWords) {
  std::vector<std::string> words = {"plan", "schedule", "--pp", "4"};
  EXPECT_EQ(find_command(words).name, "plan schedule");
  EXPECT_EQ(word_count(find_command(words)), 2u);
  EXPECT_EQ(word_count(find_command("train")), 1u);
  words[1] = "schedul";
  expect_error(ErrorKind::kConfig, {"'plan' is the first word", "did you mean plan schedule?"},
               [&] { find_command(words); });
}

TEST(Help, ModelsAreThoseThatTestsRan) {
  const std::string words[] = {"models", "--json"};
  const auto list = nlohmann::json::parse(help_for(words, false)).at("families");
  EXPECT_EQ(list.size(), families().size());
  for (const auto& family : list) {
    for (const char* key : {"reads", "writes", "trains"}) {
      EXPECT_TRUE(family.at(key).get<bool>()) << family;
    }
    EXPECT_EQ(family.at("generates"), family_defaults(family.at("name").get<std::string>()).causal);
    for (const char* key : {"model_types", "presets", "layouts", "refuses"}) {
      EXPECT_FALSE(family.at(key).empty()) << family;
    }
    EXPECT_EQ(family.at("model_types").at(0), family.at("name"));
    for (const std::string name : family.at("presets")) EXPECT_NO_THROW(preset(name));
  }
  EXPECT_THAT(help_for({words, 1}, false), HasSubstr("deepseek_v3, kimi_k2"));
}

TEST(Help, MarkdownHasEverySectionOnceWithItsCommands) {
  std::string text = flags_markdown();
  const std::string begin = "\n## precision\nTaken by ";
  const std::size_t at = text.find(begin);
  ASSERT_NE(at, std::string::npos);
  const std::string commands = text.substr(at, text.find(".\n", at) - at);
  EXPECT_THAT(commands, HasSubstr("`train`, `rl`, `score`, `generate`, `embed`, "));
  EXPECT_THAT(commands, HasSubstr("`bench serve`, "));
  EXPECT_THAT(commands, HasSubstr("`verify`, `schedule`"));
  EXPECT_THAT(commands, Not(HasSubstr("`convert`")));
  EXPECT_EQ(text.find("\n## model\n"), text.rfind("\n## model\n"));
  EXPECT_THAT(text, HasSubstr("| `--tensor-model-parallel-size`, `--tp` | `integer >= 1"));
  EXPECT_THAT(text, HasSubstr("`learned_absolute\\|rope\\|none\\|yarn`"));
  EXPECT_THAT(text, HasSubstr("| `--swiglu` | `shorthand` |  | --gated --activation silu |"));
}

void expect_problems(std::string_view command, const std::vector<std::string>& arguments,
                     const std::vector<std::string>& problems) {
  SCOPED_TRACE(command);
  expect_error(ErrorKind::kConfig, problems,
               [&] { run_command(find_command(command), arguments); });
}

TEST(CommandOptions, SayWhatIsMissing) {
  expect_problems("score", {}, {"--hf-model: is missing", "--tokens: is missing"});
  expect_problems("generate", {}, {"--hf-model", "give it or --prompt-tokens"});
  expect_problems("generate", {"--hf-model", "x", "--prompt", "x", "--prompt-tokens", "x"},
                  {"--prompt: excludes --prompt-tokens; keep one"});
  expect_problems("convert", {"--hf-model", "dir", "--export-hf", "dir"},
                  {"--export-hf: dir is the folder that is read"});
}

TEST(CommandOptions, ConvertReadsDtypeNames) {
  std::unique_ptr<CommandCall> call = find_command("convert").call({});
  FieldList list;
  call->fields(list);
  std::vector<std::string> args = {"--dtype", "bfloat16"};
  EXPECT_THAT(parse_options(list, args).problems(), IsEmpty());
  EXPECT_EQ(list.find("dtype")->text(), "bf16");
  args[1] = "int32";
  EXPECT_THAT(parse_options(list, args).problems(),
              ElementsAre("--dtype: 'int32' is not one of f32, bf16, f16, f64"));
}

}  // namespace
}  // namespace bev
