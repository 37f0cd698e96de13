// Files made to do harm: nested without end, growing when they are read, with numbers that ask for
// more memory than there is. Whether they are taken or refused, it is done soon and in little
// memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <regex>

#include "base/text.h"
#include "tests/fuzz/targets.h"

namespace bev::test {
namespace {

constexpr int kDeep = 100'000;

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

void try_file(std::string_view reader, const std::string& bytes) {
  SCOPED_TRACE(concat(reader, ": ", bytes.substr(0, 300)));
  alarm(60);  // ends a test that would never end
  ASSERT_NO_THROW(find_target(reader).run(bytes));
  alarm(0);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  constexpr std::int64_t kMostKilobytes = 1 << 20;
  EXPECT_LT(used.ru_maxrss, kMostKilobytes);
}

TEST(HandmadeFiles, OfDeepJson) {
  const std::string lists = repeat("[", kDeep) + repeat("]", kDeep);
  const std::string maps = repeat("{\"a\":", kDeep) + "1" + repeat("}", kDeep);
  for (const char* reader :
       {"config_json", "weight_index", "tokenizer_json", "tokenizer_config", "tekken", "sft_row",
        "json_record", "text_lines", "token_batches", "batch_file"}) {
    try_file(reader, repeat("[", kDeep));
    try_file(reader, lists);
    try_file(reader, maps);
    try_file(reader, concat("{\"model_type\":", lists, "}"));
    try_file(reader, concat("{\"text\":", maps, "}"));
    try_file(reader, concat("{\"a\":", std::string(kDeep, '9'), "}"));
    try_file(reader, concat("{\"", std::string(kDeep, 'k'), "\":0}"));
  }
}

TEST(HandmadeFiles, OfPickles) {
  const std::string begin("\x80\x02", 2);
  for (const char* reader : {"pickle", "distributed_metadata"}) {
    for (const char* open : {"]", "(", "}", "N\x85", "]2a", ")\x81", "2", "N2\x86"}) {
      try_file(reader, begin + repeat(open, kDeep));
      try_file(reader, begin + repeat(open, kDeep) + ".");
    }
    try_file(reader, begin + repeat("]", kDeep) + repeat("a", kDeep - 1) + ".");
    try_file(reader,
             begin + "]q" + std::string(1, '\0') + repeat(std::string("h\0a", 3), kDeep) + ".");
    try_file(reader, begin + "N" + repeat("2\x86", kDeep) + ".");
    for (const char* counted : {"X", "T", "B", "\x8b", "\x8d", "\x8e", "\x95", "r"}) {
      try_file(reader, begin + counted + std::string(8, '\xff') + ".");
      try_file(reader, begin + counted + std::string(7, '\xff') + "\x7f.");
    }
  }
}

TEST(HandmadeFiles, OfYaml) {
  for (const char* open :
       {"[", "{", "- ", "? ", "a: ", "a: [", "&a ", "!a ", "*a ", "|", "\"", "'"}) {
    try_file("yaml", repeat(open, kDeep));
  }
  std::string doubling = "a0: &a0 [x, x]\n", indented;
  for (int i = 1; i < 60; ++i) {
    doubling += concat("a", i, ": &a", i, " [*a", i - 1, ", *a", i - 1, "]\n");
  }
  try_file("yaml", doubling);
  for (int i = 0; i < 2000; ++i) indented += concat(std::string(i, ' '), "a:\n");
  try_file("yaml", indented);
  try_file("yaml", "model: &m\n  a: &b [*b]\n  m: *m\n");
}

TEST(HandmadeFiles, OfDeepTemplates) {
  for (const char* open :
       {"{% if a %}", "{% for a in b %}", "{{ ", "{% set a %}", "{% macro a() %}", "{#"}) {
    try_file("chat_template", repeat(open, kDeep));
  }
  for (const char* inside : {"(", "[", "-", "not ", "a.", "a|", "a(", "{1:", "1 if ", "a ~ ", "2**",
                             "a[", "a == ", "a and "}) {
    try_file("chat_template", "{{ " + repeat(inside, kDeep));
  }
  for (const char* behind : {".a", "|a", "[0]", "()", " ~ a", " if a", " is a", " == a"}) {
    try_file("chat_template", concat("{{ a", repeat(behind, kDeep), " }}"));
  }
}

TEST(HandmadeFiles, OfTemplatesThatGrow) {
  for (const char* text :
       {"{{ 'a' * 999999999999 }}", "{{ [1] * 999999999999 }}", "{{ range(999999999999) | list }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "{{ 'a' | center(999999999) }}", "{{ '%999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}", "{{ 10 ** 999999999 }}", "{{ 'a' | indent(999999999) }}",
        "{{ 'ab'.replace('', 'x' * 9999999) }}",
        "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% set n = namespace(a='x') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor "
        "%}",
        "{% set n = namespace(a=[1]) %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor "
        "%}",
        "{% set n = namespace(a=[1]) %}{% for i in range(999) %}{% set n.a = [n.a, n.a] %}"
        "{% endfor %}{{ n.a | tojson }}",
        "{{ 'x'.join(range(9999999)) }}", "{{ 'aaaaaaaaaaaaaaaaaaaaaaaa' | wordwrap(1) }}",
        "{{ range(9999999)[::-1] | map('string') | join | length }}"}) {
    try_file("chat_template", text);
  }
}

std::string tokenizer(std::string_view normalizer, std::string_view split, std::string_view vocab,
                      std::string_view added) {
  return concat(R"({"version":"1.0","added_tokens":[)", added, R"(],"normalizer":)", normalizer,
                R"(,"pre_tokenizer":)", split,
                R"(,"decoder":null,"post_processor":null,"model":{"type":"BPE","vocab":{)", vocab,
                R"(},"merges":[]}})");
}

TEST(HandmadeFiles, OfTokenizers) {
  const std::string twice = R"({"type":"Replace","pattern":{"String":"l"},"content":"ll"})";
  std::string doubling = twice, nested = R"({"type":"Lowercase"})";
  for (int i = 0; i < 60; ++i) doubling += "," + twice;
  for (int i = 0; i < 3000; ++i) {
    nested = concat(R"({"type":"Sequence","normalizers":[)", nested, "]}");
  }
  const std::string bytes = R"({"type":"ByteLevel"})";
  for (const std::string& steps : {doubling, bytes + repeat("," + bytes, 60)}) {
    std::string sequence = concat(R"({"type":"Sequence","normalizers":[)", steps, "]}");
    try_file("tokenizer_json", tokenizer(sequence, "null", R"("l":0)", ""));
  }
  std::string decoders = tokenizer("null", "null", R"("l":0)", "");
  decoders.replace(decoders.find("\"decoder\":null"), 14,
                   concat(R"("decoder":{"type":"Sequence","decoders":[)", doubling, "]}"));
  try_file("tokenizer_json", decoders);
  try_file("tokenizer_json", tokenizer(nested, "null", R"("l":0)", ""));
  for (const char* pattern : {"(a|a|l*)*$", "((l+)+)+x", "(?:.*){50}x", "(?R)", "(.*)*\\\\1",
                              "(((((((((l{1000}){1000}){1000}){9}){9}){9}){9}){9}){9})"}) {
    std::string split = concat(R"({"type":"Split","pattern":{"Regex":")", pattern,
                               R"("},"behavior":"Isolated","invert":false})");
    try_file("tokenizer_json", tokenizer("null", split, R"("l":0)", ""));
  }
  for (const char* id : {"2147483646", "2147483647", "4294967295", "18446744073709551615", "-1"}) {
    std::string word = concat("\"l\":", id);
    std::string added = concat(
        R"({"id":)", id,
        R"(,"content":"<x>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false})");
    try_file("tokenizer_json", tokenizer("null", "null", word, ""));
    try_file("tokenizer_json", tokenizer("null", "null", R"("l":0)", added));
    try_file("tiktoken", concat("IQ== ", id, "\n"));
  }
}

TEST(HandmadeFiles, OfConfigurations) {
  const std::regex layers(R"re(("num_hidden_layers"|"n_layer"): *\d+)re");
  const std::regex listed(R"re("layer_types": *\[[^\]]*\],)re");
  for (const std::string& good : find_target("config_json").seeds) {
    for (const char* count : {"268435456", "268435457", "-1", "1e9"}) {
      std::string many = std::regex_replace(good, layers, concat("$1: ", count));
      const bool lists = good.find("\"layers_block_type\"") != good.npos;  // instead of a count
      ASSERT_TRUE(lists || many != good) << good;
      try_file("config_json", many);
      try_file("config_json", std::regex_replace(many, listed, ""));
    }
  }
}

TEST(HandmadeFiles, OfTensors) {
  auto file = [](std::uint64_t length, std::string_view text) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes.append(text);
  };
  for (std::uint64_t length : {~0ull, 1ull << 63, 99'999'999ull, 100'000'001ull, ~7ull}) {
    try_file("safetensors", file(length, "{}"));
  }
  std::string entry = R"(:{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  std::string same = "{\"a\"" + entry;
  for (int i = 0; i < 10'000; ++i) same += concat(",\"a", i, "\"", entry);
  try_file("safetensors", file(same.size() + 1, same + "}12345678"));
}

}  // namespace
}  // namespace bev::test
