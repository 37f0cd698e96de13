#include "data/preference/preference_rows.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/value_text.h"

namespace bev {

namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

// A row and its location for messages.
class RowReader {
 public:
  RowReader(const Dict& row, const std::string& source) : row_(row), source_(source) {}

  // nullptr if missing or null.
  const Value* member(const char* name) const {
    const Value* found = row_.find_name(name);
    return found && !found->is_none() ? found : nullptr;
  }
  // A text or a list of messages.
  Value turns(const char* name) const {
    const Value* value = member(name);
    BEV_CHECK(value, ErrorKind::kInput, source_, ": \"", name, "\" is missing");
    BEV_CHECK(value->is_string() || value->is_sequence(), ErrorKind::kInput, source_, ": \"", name,
              "\" is neither a text nor a list of messages");
    if (value->is_sequence()) check_messages(*value, name);
    return *value;
  }
  std::optional<double> number(const char* name) const {
    const Value* value = member(name);
    if (!value) return std::nullopt;
    BEV_CHECK(value->is_number(), ErrorKind::kInput, source_, ": \"", name, "\" is no number");
    return value->number();
  }
  bool truth(const char* name) const {
    const Value* value = member(name);
    BEV_CHECK(value, ErrorKind::kInput, source_, ": \"", name, "\" is missing");
    bool valid = value->is_bool() || (value->is_int() && (*value->integer() | 1) == 1);
    BEV_CHECK(valid, ErrorKind::kInput, source_, ": \"", name, "\" is neither true nor false");
    return value->truth();
  }
  // Some data sets hold it as text of JSON.
  Value tools() const {
    const Value* value = member("tools");
    if (!value || !value->truth()) return Value();
    if (!value->is_string()) return *value;
    return jinja::parse_json(*value->string(), concat(source_, ", \"tools\""));
  }
  void check_answer(const char* name, const Value& answer, bool conversational) const {
    BEV_CHECK(answer.is_sequence() == conversational, ErrorKind::kInput, source_, ": \"", name,
              "\" is ", answer.is_string() ? "a text" : "a list of messages",
              " and the prompt is not; give both alike");
    if (!conversational) {
      BEV_CHECK(answer.truth(), ErrorKind::kInput, source_, ": \"", name, "\" is empty");
      return;
    }
    const List& messages = answer.sequence()->items;
    BEV_CHECK(!messages.empty(), ErrorKind::kInput, source_, ": \"", name, "\" has no message");
    BEV_CHECK(role_of(messages[0]) == "assistant", ErrorKind::kInput, source_, ": \"", name,
              "\" begins with a message of the ", role_of(messages[0]),
              "; answers are the assistant's");
    const Dict& last = *messages.back().dict();
    const Value *content = last.find_name("content"), *calls = last.find_name("tool_calls");
    bool says = (content && content->truth()) || (calls && calls->truth());
    BEV_CHECK(says, ErrorKind::kInput, source_, ": the answer of \"", name, "\" is empty");
  }
  void check_prompt(const Value& prompt) const {
    BEV_CHECK(prompt.truth(), ErrorKind::kInput, source_, ": \"prompt\" is empty");
    if (!prompt.is_sequence()) return;
    std::string_view last = role_of(prompt.sequence()->items.back());
    BEV_CHECK(last != "assistant", ErrorKind::kInput, source_,
              ": \"prompt\" ends with a message of the assistant, which belongs to the answer; a "
              "prompt ends with a question");
  }

 private:
  static std::string_view role_of(const Value& message) {
    return *message.dict()->find_name("role")->string();
  }
  void check_messages(const Value& list, const char* name) const {
    const List& messages = list.sequence()->items;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Dict* dict = messages[i].dict();
      const Value* role = dict ? dict->find_name("role") : nullptr;
      BEV_CHECK(role && role->is_string(), ErrorKind::kInput, source_, ": message ", i, " of \"",
                name, "\" has no role");
    }
  }

  const Dict& row_;
  const std::string& source_;
};

// Number of messages that both lists begin with, or of bytes of two texts, whole characters of
// them; a space before the answers is theirs.
std::size_t common_beginning(const Value& a, const Value& b) {
  if (a.is_sequence()) {
    const List &first = a.sequence()->items, &second = b.sequence()->items;
    std::size_t most = std::min(first.size(), second.size()), count = 0;
    while (count < most && jinja::equal(first[count], second[count])) ++count;
    // Answers that are equal are answers all the same.
    return count == most && count > 0 ? count - 1 : count;
  }
  std::string_view first = *a.string(), second = *b.string();
  auto count = static_cast<std::size_t>(std::ranges::mismatch(first, second).in1 - first.begin());
  if (count == std::min(first.size(), second.size()) && count > 0) --count;
  while (count > 0 && (first[count] & 0xc0) == 0x80) --count;
  return count > 0 && first[count - 1] == ' ' ? count - 1 : count;
}

Value part(const Value& value, std::size_t begin, std::size_t end) {
  if (!value.is_sequence()) return std::string_view(*value.string()).substr(begin, end - begin);
  const List& items = value.sequence()->items;
  auto at = [&](std::size_t i) { return items.begin() + static_cast<std::ptrdiff_t>(i); };
  return Value::list(List(at(begin), at(std::min(end, items.size()))));
}

void split_prompt(PreferenceRow& row, const std::string& source) {
  Value &chosen = row.answers[0], &rejected = row.answers[1];
  BEV_CHECK(chosen.is_sequence() == rejected.is_sequence(), ErrorKind::kInput, source,
            ": one of \"chosen\" and \"rejected\" is a text and the other a list of messages");
  std::size_t common = common_beginning(chosen, rejected);
  BEV_CHECK(common > 0, ErrorKind::kInput, source,
            ": \"prompt\" is missing, and \"chosen\" and \"rejected\" have no common beginning");
  row.prompt = part(chosen, 0, common);
  constexpr std::size_t kEnd = std::size_t{1} << 60;
  chosen = part(chosen, common, kEnd);
  rejected = part(rejected, common, kEnd);
}

}  // namespace

std::vector<std::string> preference_row_keys() {
  return {"prompt", "chosen",           "rejected",           "completion", "label",
          "tools",  "ref_chosen_logps", "ref_rejected_logps", "margin"};
}

PreferenceRow read_preference_row(std::string_view line, const std::string& source,
                                  PreferenceKind kind) {
  Value object = jinja::parse_json(line, source);
  BEV_CHECK(object.is_dict(), ErrorKind::kInput, source, ": not a JSON object");
  RowReader in(*object.dict(), source);
  PreferenceRow row;
  row.tools = in.tools();
  std::vector<const char*> names = {"chosen", "rejected"};
  if (kind == PreferenceKind::kLabelled) {
    BEV_CHECK(!in.member("chosen"), ErrorKind::kInput, source,
              ": has a pair of answers; this objective takes rows with prompt, completion and "
              "label");
    names = {"completion"};
    row.desirable = in.truth("label");
  } else {
    BEV_CHECK(!in.member("completion"), ErrorKind::kInput, source,
              ": has one completion; this objective takes rows with prompt, chosen and rejected");
    row.ref_chosen_logps = in.number("ref_chosen_logps");
    row.ref_rejected_logps = in.number("ref_rejected_logps");
    BEV_CHECK(row.ref_chosen_logps.has_value() == row.ref_rejected_logps.has_value(),
              ErrorKind::kInput, source, ": ref_chosen_logps and ref_rejected_logps come together");
    row.margin = in.number("margin");
  }
  for (const char* name : names) row.answers.push_back(in.turns(name));
  if (in.member("prompt")) {
    row.prompt = in.turns("prompt");
  } else {
    BEV_CHECK(kind == PreferenceKind::kPair, ErrorKind::kInput, source, ": \"prompt\" is missing");
    split_prompt(row, source);
  }
  in.check_prompt(row.prompt);
  for (std::size_t i = 0; i < names.size(); ++i) {
    in.check_answer(names[i], row.answers[i], row.conversational());
  }
  return row;
}

namespace {

TokenRow encode_text(const Tokenizer& tokenizer, const std::string& text) {
  TokenRow ids = tokenizer.encode(text);
  tokenizer.add_special_tokens(ids);
  return ids;
}

// The prompt alone, or with an answer.
class PromptEncoder {
 public:
  PromptEncoder(const PreferenceRow& row, const ChatTemplate* chat_template,
                const Tokenizer& tokenizer)
      : row_(row), template_(chat_template), tokenizer_(tokenizer) {}

  TokenRow prompt() const {
    return row_.conversational() ? chat(row_.prompt.sequence()->items, true)
                                 : encode_text(tokenizer_, *row_.prompt.string());
  }
  TokenRow with(const Value& answer) const {
    if (row_.conversational()) {
      List messages = row_.prompt.sequence()->items;
      const List& more = answer.sequence()->items;
      messages.insert(messages.end(), more.begin(), more.end());
      return chat(std::move(messages), false);
    }
    std::string text = *row_.prompt.string() + *answer.string();
    std::optional<std::int32_t> end = tokenizer_.eod();
    std::string mark = end ? tokenizer_.token_text(*end).value_or("") : "";
    TokenRow ids = encode_text(tokenizer_, text);
    if (end && (mark.empty() || !text.ends_with(mark)) && ids.back() != *end) ids.push_back(*end);
    return ids;
  }

 private:
  TokenRow chat(List messages, bool prompt) const {
    BEV_CHECK(template_ != nullptr, ErrorKind::kInput,
              "the tokenizer has no chat template for a list of messages; give --chat-template");
    ChatOptions options;
    options.tools = row_.tools;
    options.add_generation_prompt = prompt;
    return tokenizer_.encode(template_->render(Value::list(std::move(messages)), options).text);
  }

  const PreferenceRow& row_;
  const ChatTemplate* template_;
  const Tokenizer& tokenizer_;
};

}  // namespace

PreferenceTokens encode_preference_row(const PreferenceRow& row, const ChatTemplate* chat_template,
                                       const Tokenizer& tokenizer) {
  PromptEncoder encoder(row, chat_template, tokenizer);
  TokenRow prompt = encoder.prompt();
  PreferenceTokens out;
  out.desirable = row.desirable;
  out.ref_chosen_logps = row.ref_chosen_logps;
  out.ref_rejected_logps = row.ref_rejected_logps;
  out.margin = row.margin;
  std::size_t common = prompt.size();
  for (const Value& answer : row.answers) {
    TokenRow whole = encoder.with(answer);
    auto apart = std::ranges::mismatch(prompt, whole).in1;
    common = std::min(common, static_cast<std::size_t>(apart - prompt.begin()));
    out.answers.push_back(std::move(whole));
  }
  BEV_CHECK(common > 0, ErrorKind::kInput,
            "the tokens of the prompt alone and those with an answer begin differently, so where "
            "the answer begins cannot be found");
  out.diverges = common < prompt.size();
  for (TokenRow& answer : out.answers) {
    BEV_CHECK(answer.size() > common, ErrorKind::kInput, "an answer has no token");
    answer.erase(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(common));
  }
  prompt.resize(common);
  out.prompt = std::move(prompt);
  out.alike = out.answers.size() == 2 && out.answers[0] == out.answers[1];
  return out;
}

}  // namespace bev
