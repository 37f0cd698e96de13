#include "app/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/commands/commands.h"
#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
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
  expect_error(ErrorKind::kConfig,
               {"there are train, score, generate, embed, bench serve, convert, checkpoint verify"},
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

TEST(Help, MarkdownHasEverySectionOnceWithItsCommands) {
  std::string text = flags_markdown();
  EXPECT_THAT(text, HasSubstr("\n## precision\nTaken by `train`, `score`, `generate`, `embed`, "
                              "`bench serve`, `verify`, "
                              "`schedule`.\n"));
  EXPECT_EQ(text.find("\n## model\n"), text.rfind("\n## model\n"));
  EXPECT_THAT(text, HasSubstr("| `--tensor-model-parallel-size`, `--tp` | `integer >= 1"));
  EXPECT_THAT(text, HasSubstr("`learned_absolute\\|rope\\|none`"));
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
