#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/text/regex.h"

#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text;
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct ReleaseCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct ReleaseData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, ReleaseCode> code;
  std::string pattern;
};

Regex::Regex(std::string_view pattern, RegexDialect dialect) : code_(std::make_unique<Code>()) {
  BEV_CHECK(is_valid_utf8(pattern), ErrorKind::kInput, "regular expression ", quote(pattern),
            ": not valid UTF-8");
  std::string translated = translate_regex(pattern, dialect);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_->pattern = pattern;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                  translated.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr));
  BEV_CHECK(code_->code != nullptr, ErrorKind::kInput, "regular expression ", quote(pattern), ": ",
            message_of(error));
  // Without JIT support the interpreter gives the same matches.
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Matches::State {
  const Code& code;
  std::string_view text;
  std::unique_ptr<pcre2_match_data, ReleaseData> data;
  std::size_t at = 0;
  std::optional<std::size_t> last_end;

  // First match from `at` on. If the JIT code runs out of stack, the interpreter, which uses the
  // heap, takes over.
  std::optional<Match> match() {
    auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int count = pcre2_match(code.code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK,
                            data.get(), nullptr);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
      count = pcre2_match(code.code.get(), subject, text.size(), at,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), nullptr);
    }
    if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
    BEV_CHECK(count > 0, ErrorKind::kInput, "regular expression ", quote(code.pattern), ": ",
              message_of(count));
    PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    return Match{ends[0], ends[1]};
  }
};

Regex::Matches::Matches(const Regex& regex, std::string_view text)
    : state_(new State{*regex.code_, text, {}, 0, {}}) {
  state_->data.reset(pcre2_match_data_create_from_pattern(regex.code_->code.get(), nullptr));
}

Regex::Matches::~Matches() = default;

std::optional<Match> Regex::Matches::next() {
  State& state = *state_;
  while (state.at <= state.text.size()) {
    std::optional<Match> found = state.match();
    if (!found) break;
    bool empty = found->begin == found->end;
    state.at = found->end;
    if (empty) {
      state.at += found->end < state.text.size() ? point_bytes(state.text[found->end]) : 1;
      if (state.last_end == found->end) continue;
    }
    state.last_end = found->end;
    return found;
  }
  state.at = state.text.size() + 1;
  return std::nullopt;
}

std::optional<Match> Regex::Matches::group(std::size_t number) const {
  if (number >= pcre2_get_ovector_count(state_->data.get())) return std::nullopt;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data.get()) + 2 * number;
  if (ends[0] == PCRE2_UNSET) return std::nullopt;
  return Match{ends[0], ends[1]};
}

std::string escape_regex(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\.+*?()|[]{}^$#&-~").find(c) != std::string_view::npos) {
      out.push_back('\\');
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace bev
