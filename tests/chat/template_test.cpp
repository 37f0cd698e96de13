// Templates that fail, and templates that would run for ever.
#include "chat/jinja/template.h"

#include <gtest/gtest.h>

#include "chat/jinja/value_text.h"
#include "tests/support/expect_error.h"

namespace bev::jinja {
namespace {

std::string render(const std::string& source, const std::string& context = "{}") {
  return Template(source, "file.jinja").render(*parse_json(context, "context").dict()).text;
}

TEST(JinjaTemplate, ErrorsNameFileLineAndCause) {
  auto fails = [](const std::string& source, std::vector<std::string> parts) {
    parts.push_back("file.jinja");
    expect_error(ErrorKind::kInput, parts, [&] { render(source); });
  };
  fails("a\nb\n{{ x.y }}", {"line 3", "'x' is undefined"});
  fails("{{ {}.a.b }}", {"line 1", "'dict object' has no attribute 'a'"});
  fails("\n{% if true %}\n{{ 1 + 'a' }}{% endif %}", {"line 3", "'int' + 'str'"});
  fails("\n\n{{ raise_exception('roles must alternate') }}", {"line 3", "roles must alternate"});
  fails("{{ 'a\nb' }}\n{% nonsense %}", {"line 3", "no tag 'nonsense'"});
  fails("{# one\ntwo #}\n{{ 1", {"line 3", "no end }}"});
  fails("{% for x in [1] %}\n{% endif %}", {"line 2", "endif"});
  fails("{% raw %}\nx", {"line 1", "endraw"});
  fails("{{ [1].append(2) }}", {"may not change a list"});
  fails("{% include 'other.jinja' %}", {"include", "refused"});
  fails("{{ 1|no_such_filter }}", {"no filter 'no_such_filter'"});
  fails("{{ 9223372036854775807 + 1 }}", {"64 bits"});
  fails("{{ 99999999999999999999 }}", {"64 bits"});
  fails("{{ '\\ud800' }}", {"is not a character"});
  fails("{{ x | tojson }}", {"tojson", "'x' is undefined"});
  fails(std::string("\xff\xfe"), {"UTF-8"});
}

TEST(JinjaTemplate, WhatIsUsedAfterAMacroKeepsItsLine) {
  expect_error(ErrorKind::kInput, {"line 5"},
               [] { render("{% macro m() %}\nx\ny{% endmacro %}\n\n{{ m() + 1 }}"); });
}

TEST(JinjaTemplate, HostileTemplatesEnd) {
  const std::string cost = "does not end", deep = "too deep";
  auto fails = [](const std::string& part, const std::string& source) {
    SCOPED_TRACE(source);
    expect_error(ErrorKind::kInput, {part}, [&] { render(source); });
  };
  std::string loops, ends;
  for (int i = 0; i < 9; ++i) {
    loops += "{% for x in range(99999) %}";
    ends += "{% endfor %}";
  }
  fails(cost, loops + ends);
  fails("",
        "{% set n = namespace(s='abcdefgh') %}{% for i in range(99) %}"
        "{% set n.s = n.s ~ n.s %}{% endfor %}");
  fails("",
        "{% set n = namespace(l=[1]) %}{% for i in range(99) %}"
        "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}");
  fails("deeper than",
        "{% set n = namespace(l=[]) %}{% for i in range(9999) %}"
        "{% set n.l = [n.l] %}{% endfor %}");
  fails("", "{{ 'a' * 9999999999 }}");
  fails("", "{{ [0] * 9999999999 }}");
  fails("", "{{ 'x'.center(9999999999) }}");
  fails("", "{{ '%9999999999d' % 1 }}");
  fails("", "{{ ('a' * 10000000).replace('', 'b' * 1000000) }}");
  fails("", "{{ range(999999999)|list }}");
  fails("", "{{ 10 ** 1000 }}");
  fails(deep, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  fails(deep, "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  fails(deep, std::string(5000, '(').insert(0, "{{ ") + "1" + std::string(5000, ')') + " }}");
  fails(deep, "{{ " + std::string(5000, '-') + "1 }}");
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if 1 %}";
  fails(deep, blocks);
  std::string nots = "{{ ";
  for (int i = 0; i < 5000; ++i) nots += "not ";
  fails(deep, nots + "1 }}");
}

TEST(JinjaTemplate, NamespacesThatHoldThemselvesAreFreedAndPrinted) {
  EXPECT_EQ(
      render("{% set n = namespace() %}{% set n.me = n %}{% set n.m = [n] %}{{ n.me.m|length }}"),
      "1");
  EXPECT_EQ(render("{% set n = namespace(a=1) %}{% macro m() %}{{ n.a }}{% endmacro %}"
                   "{% set n.f = m %}{{ n.f() }}"),
            "1");
}

TEST(JinjaTemplate, NumbersAreWrittenAsPythonDoes) {
  EXPECT_EQ(render("{{ 1e22 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ -0.0 }} {{ 3 / 1 }}"),
            "1e+22 1000000000000000.0 0.30000000000000004 1e-05 -0.0 3.0");
  EXPECT_EQ(render("{{ x }}", R"({"x": [1.0, 1e300, 9007199254740993]})"),
            "[1.0, 1e+300, 9007199254740993]");
}

TEST(JinjaTemplate, KeepsTheOrderOfKeys) {
  EXPECT_EQ(render("{{ x|tojson }}", R"({"x": {"z": 1, "a": {"y": 2, "b": 3}}})"),
            R"({"z": 1, "a": {"y": 2, "b": 3}})");
}

TEST(JinjaTemplate, TellsTheTime) {
  EXPECT_EQ(render("{{ strftime_now('%Y-%m-%d')|length }}{{ strftime_now('x%%') }}"), "10x%");
}

}  // namespace
}  // namespace bev::jinja
