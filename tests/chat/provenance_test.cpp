// Which text of a rendered conversation the assistant says, found by where it comes from.
#include <gtest/gtest.h>

#include "chat/assistant_spans.h"
#include "chat/chat_template.h"
#include "chat/jinja/python_text.h"
#include "chat/jinja/value_text.h"
#include "tests/support/mark_tokenizer.h"
#include "tokenizer/text/utf8.h"

namespace bev {
namespace {

// The spans of a rendered conversation, each between [ and ].
std::string bracketed(const std::string& source, const std::string& conversation,
                      const std::string& tools = "") {
  ChatTemplate chat(jinja::Template(source, "t"), {});
  jinja::Value messages = jinja::parse_json(conversation, "messages");
  ChatOptions options;
  if (!tools.empty()) options.tools = jinja::parse_json(tools, "tools");
  jinja::Rendered rendered = chat.render(messages, options);
  std::vector<jinja::GenerationSpan> spans =
      chat.marks_assistant() ? rendered.spans
                             : assistant_spans(rendered, messages.sequence()->items, chat.header());
  std::u32string text = jinja::to_points(rendered.text);
  for (std::size_t i = spans.size(); i-- > 0;) {
    text.insert(std::min(spans[i].end, text.size()), U"]");
    text.insert(spans[i].begin, U"[");
  }
  return jinja::from_points(text);
}

std::string without_tags(std::string text) {
  for (std::string_view tag : {"{% generation %}", "{% endgeneration %}"}) {
    for (auto at = text.find(tag); at != text.npos; at = text.find(tag)) text.erase(at, tag.size());
  }
  return text;
}

// Templates with tags, each a way to write conversations that published ones have.
const std::vector<std::string> kTagged = {
    // A header by role, blanks stripped.
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content | trim + '<|end|>\n' }}{% endgeneration %}{% else %}"
    "{{ m.content | trim + '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ '' }}{% endif %}",
    // Another name of the role, a system prompt taken out of the list, and macros.
    "{% macro say(m) %}{{ m.content if m.content is string else m.content | map(attribute='text') "
    "| "
    "join }}{% endmacro %}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{{ '<sys>' + messages[0].content + '</sys>' }}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<' ~ role ~ '>' }}{% if role == 'model' %}{% generation %}{{ say(m) }}</s>"
    "{% endgeneration %}{% else %}{{ say(m) ~ '</s>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}",
    // Reasoning cut off and written again, and calls of tools.
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{% set text = "
    "m.content "
    "or '' %}{% if '</think>' in text %}<think>{{ text.split('</think>')[0].split('<think>')[-1]"
    ".strip() }}</think>{% set text = text.split('</think>')[-1].lstrip() %}{% endif %}{{ text }}"
    "{% for call in m.tool_calls or [] %}{% set call = call.function or call %}"
    "<call>{{ call.name }}({% for k, v in call.arguments.items() %}{{ ', ' if not loop.first }}"
    "{{ k }}={{ v | tojson if v is not string else v }}{% endfor %}){% endfor %}<eos>"
    "{% endgeneration %}{% elif m.role == 'tool' %}<t>{{ m.name }}:{{ m.content }}<eos>{% else %}"
    "<u>{{ m.content }}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
    // A prompt that begins the reasoning.
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
    "<think>{{ m.reasoning_content or '' }}</think>{{ m.content }}<e>{% endgeneration %}{% else %}"
    "{{ m.content }}<e>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n"
    "{% endif %}",
    // Indices in place of messages, and no generation prompt.
    "{% for i in range(messages | length) %}{% set m = messages[i] %}{% if m.role == 'user' %}"
    "[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' %}{% generation %} {{ m.content }}"
    "</s>{% endgeneration %}{% else %}<<{{ m.content }}>>{% endif %}{% endfor %}",
    // Messages that the template puts together itself.
    "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + "
    "[{'who': m.role, 'says': '' ~ m.content}] %}{% endfor %}{% for m in ns.all %}<{{ m.who }}>"
    "{% if m.who == 'assistant' %}{% generation %}{{ m.says }}.{% endgeneration %}{% else %}"
    "{{ m.says }}.{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
};

const std::vector<std::string> kConversations = {
    R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])",
    R"([{"role": "system", "content": "s"}, {"role": "user", "content": " q "},
        {"role": "assistant", "content": " a\n"}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": "q"}])",
    R"([{"role": "user", "content": "Grüße 🎉"}, {"role": "assistant", "content": "日本語 é"},
        {"role": "user", "content": "é"}])",
    R"([{"role": "user", "content": "<|assistant|>\n<a><model>"},
        {"role": "assistant", "content": "<|assistant|>\n<a><model></s><e>"}])",
    R"([{"role": "user", "content": "x"}, {"role": "assistant",
        "content": "<think>\nso\n</think>\n\nyes", "reasoning_content": "so"},
        {"role": "user", "content": "so"}, {"role": "assistant", "content": "yes"}])",
    R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "z", "tool_calls":
        [{"type": "function", "function": {"name": "f", "arguments": {"a": "b\n", "n": [1, "x"]}}},
         {"function": {"name": "g", "arguments": {}}}]},
        {"role": "tool", "name": "f", "content": "f"}, {"role": "assistant", "content": "done"}])",
};

TEST(Provenance, GivesTheSpansOfTheTagsThatAreTakenAway) {
  for (const std::string& source : kTagged) {
    for (const std::string& conversation : kConversations) {
      SCOPED_TRACE(source + "\n" + conversation);
      EXPECT_EQ(bracketed(without_tags(source), conversation), bracketed(source, conversation));
    }
  }
}

const char* const kPair =
    R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "Ab\ncd"},
        {"role": "user", "content": "Ab"}, {"role": "assistant", "content": ""}])";

TEST(Provenance, AnEmptyAnswerIsItsEnd) {
  EXPECT_EQ(bracketed("{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>{% endfor %}"
                      "{% if add_generation_prompt %}<assistant>{% endif %}",
                      kPair),
            "<user>q<e><assistant>[Ab\ncd<e>]<user>Ab<e><assistant>[<e>]");
}

TEST(Provenance, TextAfterTheLastTurnBelongsToIt) {
  const std::string source =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% else %}<eos>{% endif %}";
  EXPECT_EQ(bracketed(source, kPair), "<user>q<assistant>[Ab\ncd]<user>Ab<assistant>[<eos>]");
  EXPECT_EQ(bracketed(source, R"([{"role": "assistant", "content": "a"},
                                  {"role": "user", "content": "b"}])"),
            "<assistant>[a]<user>b<eos>");
}

TEST(Provenance, FollowsTextThroughFiltersMethodsAndFormats) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"m.content | upper", "AB\nCD"},
      {"m.content | replace('b', '--')", "A--\ncd"},
      {"m.content.replace('', '.')", ".A.b.\n.c.d."},
      {"m.content.split('\\n') | join('+')", "Ab+cd"},
      {"'/'.join(m.content.splitlines())", "Ab/cd"},
      {"m.content[::-1]", "dc\nbA"},
      {"m.content[1:-1]", "b\nc"},
      {"m.content | reverse", "dc\nbA"},
      {"m.content | list | last", "d"},
      {"m.content | tojson", "\"Ab\\ncd\""},
      {"m | tojson", R"({"role": "assistant", "content": "Ab\ncd"})"},
      {"[m.content]", "['Ab\\ncd']"},
      {"'%s, %5s!' % (m.content, 1)", "Ab\ncd,     1!"},
      {"'{{}} {}'.format(m.content)", "{} Ab\ncd"},
      {"m.content | indent(2)", "Ab\n  cd"},
      {"m.content.partition('\\n')[2]", "cd"},
      {"m.content.removeprefix('A')", "b\ncd"},
      {"m.content.ljust(7)", "Ab\ncd  "},
      {"m.content * 2", "Ab\ncdAb\ncd"},
      {"m.content | truncate(4, true, '~', 0)", "Ab\n~"},
      {"m.content ~ 1", "Ab\ncd1"},
      {"m.content | default('x', true)", "Ab\ncd"},
  };
  for (const auto& [expression, said] : rows) {
    // What the user says goes the same way; the words around it tell the turns apart.
    std::string source = "{% for m in messages %}<{{ m.role }}>{{ " + expression +
                         " }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    std::string text = bracketed(source, R"([{"role": "user", "content": "Ab\ncd"},
                                             {"role": "assistant", "content": "Ab\ncd"}])");
    std::size_t answer = text.find("<assistant>[");
    ASSERT_NE(answer, text.npos) << expression << "\n" << text;
    EXPECT_EQ(text.substr(answer), "<assistant>[" + said + "]") << expression;
    // Outside of a loop the text alone says whose it is.
    std::string alone = bracketed("{% set m = messages[0] %}{{ " + expression +
                                      " }}|{% set m = messages[1] %}{{ " + expression + " }}",
                                  R"([{"role": "user", "content": "Ab\ncd"},
                                      {"role": "assistant", "content": "Ab\ncd"}])");
    EXPECT_NE(alone.find("["), alone.npos) << expression << "\n" << alone;
  }
}

TEST(Provenance, PairsInOneIterationAreToldApart) {
  EXPECT_EQ(bracketed("{% for m in messages if m.role == 'user' %}Q: {{ m.content }}\n{{ 'A: ' ~ "
                      "messages[2 * loop.index0 + 1].content ~ '</s>' }}{% endfor %}",
                      kPair),
            "Q: q\n[A: Ab\ncd</s>]Q: Ab\nA: </s>");
}

TEST(Provenance, WholeConversationsInMacrosAndBlocksKeepTheirTurns) {
  const std::string loop =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  const std::string expected = "<user>q<e><assistant>[Ab\ncd<e>]<user>Ab<e><assistant>[<e>]";
  EXPECT_EQ(bracketed("{% macro all() %}" + loop + "{% endmacro %}{{ all() | trim }}", kPair),
            expected);
  EXPECT_EQ(bracketed("{% set all %}" + loop + "{% endset %}{{ all }}", kPair), expected);
  EXPECT_EQ(bracketed("{% filter trim %}" + loop + "{% endfilter %}", kPair), expected);
}

TEST(Provenance, AToolsAnswerInTheAssistantsTurnIsNotTheAssistants) {
  const char* source =
      "{% macro answer(text) %}<answer>{{ text }}</answer>{% endmacro %}"
      "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}"
      "{% for k in range(loop.index0 + 1, messages | length) %}"
      "{% if messages[k].role == 'tool' %}{{ answer(messages[k].content) }}{% endif %}{% endfor %}"
      "<e>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(bracketed(source, R"([{"role": "user", "content": "q"},
      {"role": "assistant", "content": "call"}, {"role": "tool", "content": "r"}])"),
            "<user>q<answer>r</answer><e><assistant>[call]<answer>r</answer>[<e>]");
}

TEST(Provenance, ASpecialTokenBehindATurnEndsIt) {
  MarkTokenizer tokenizer({"<|user|>", "<|assistant|>", "<|end|>"});
  auto said = [&](const std::string& source) {
    ChatTemplate chat(jinja::Template(source, "t"), {});
    EncodedChat encoded = encode_chat(chat, tokenizer, jinja::parse_json(kPair, "m"), {});
    std::string out;
    for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
      std::string token = tokenizer.decode(std::vector{encoded.ids[i]});
      out += encoded.assistant[i] == 1 ? token : "_";
    }
    return out;
  };
  const std::string prompt = "{% if add_generation_prompt %}<|assistant|>{% endif %}";
  EXPECT_EQ(said("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}" + prompt),
            "___Ab\ncd<|user|>___");
  EXPECT_EQ(
      said("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}" + prompt),
      "_____Ab\ncd<|end|>\n______<|end|>\n");
}

TEST(Provenance, NoAnswerNoSpan) {
  const char* user = R"([{"role": "user", "content": "q"}])";
  for (const std::string& source : kTagged) {
    EXPECT_EQ(bracketed(without_tags(source), user).find('[') != std::string::npos,
              bracketed(source, user).find('[') != std::string::npos);
  }
}

}  // namespace
}  // namespace bev
