// The end of turns of the templates in use.
#include "chat/turn_end.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/mark_tokenizer.h"

namespace bev {
namespace {

std::string end_of(const std::string& text, const MarkTokenizer& tokenizer) {
  jinja::Dict special;
  special.set("bos_token", "<s>");
  special.set("eos_token", "</s>");
  std::optional<std::int32_t> end =
      turn_end(ChatTemplate(jinja::Template(text, "template"), special), tokenizer);
  return end ? tokenizer.decode(std::vector{*end}) : "";
}

TEST(TurnEnd, IsTheSpecialTokenAfterAnAnswer) {
  const MarkTokenizer tokenizer({"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>",
                                 "<end_of_turn>", "<|end|>", "<|return|>", "<|end_of_text|>",
                                 "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>"});
  const std::pair<const char*, const char*> kEnds[] = {{"chatml", "<|im_end|>"},
                                                       {"chatml_generation", "<|im_end|>"},
                                                       {"qwen2.5", "<|im_end|>"},
                                                       {"qwen3", "<|im_end|>"},
                                                       {"smollm3", "<|im_end|>"},
                                                       {"llama3", "<|eot_id|>"},
                                                       {"llama3.1", "<|eot_id|>"},
                                                       {"gemma2", "<end_of_turn>"},
                                                       {"gemma3", "<end_of_turn>"},
                                                       {"phi3", "<|end|>"},
                                                       {"gpt_oss", "<|return|>"},
                                                       {"granite", "<|end_of_text|>"},
                                                       {"mixtral", "</s>"},
                                                       {"mistral_v3", "</s>"},
                                                       {"llama2", "</s>"},
                                                       {"zephyr", "</s>"},
                                                       {"command_r", "<|END_OF_TURN_TOKEN|>"},
                                                       {"deepseek_r1", "<｜end▁of▁sentence｜>"}};
  for (const auto& [name, end] : kEnds) {
    std::string text =
        read_file(concat(BEV_SOURCE_DIR "/tests/golden/chat/templates/", name, ".jinja"));
    EXPECT_EQ(end_of(text, tokenizer), end) << name;
  }
}

TEST(TurnEnd, IsAbsentWithoutASpecialToken) {
  const MarkTokenizer tokenizer({"<|im_end|>"});
  EXPECT_EQ(end_of("{% for m in messages %}{{ m.content }}\n{% endfor %}", tokenizer), "");
  EXPECT_EQ(end_of("{% for m in messages %}{{ m.content }} end<|im_end|>{% endfor %}", tokenizer),
            "");
  EXPECT_EQ(end_of("{{ raise_exception('no') }}", tokenizer), "");
  EXPECT_EQ(end_of("{{ messages[0].content }}<|im_end|>", tokenizer), "");
}

}  // namespace
}  // namespace bev
