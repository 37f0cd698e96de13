#include "data/labelled/text_example.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "data/labelled/table_file.h"

namespace bev {

namespace {

// The number that a whole text is; nullopt if it is none.
template <class T>
std::optional<T> number_of(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end ? std::optional<T>(value) : std::nullopt;
}

std::string text_of(const JsonPlace& row, const std::string& column) {
  BEV_CHECK(row.has(column), ErrorKind::kInput, row.where(), ": no column '", column,
            "'; there are ", join(row.names(), ", "));
  return row.member(column).scalar_text();
}

// A list of texts, or one text of words with blanks between them.
std::vector<std::string> words_of(const JsonPlace& row, const std::string& column) {
  std::vector<std::string> words;
  BEV_CHECK(row.has(column), ErrorKind::kInput, row.where(), ": no column '", column,
            "'; there are ", join(row.names(), ", "));
  JsonPlace place = row.member(column);
  if (place.is_list()) {
    for (const JsonPlace& word : place.entries("words")) words.push_back(word.scalar_text());
    return words;
  }
  const std::string text = place.scalar_text();
  for (std::string_view rest = trim(text); !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    words.emplace_back(rest.substr(0, end));
    rest = trim(rest.substr(end));
  }
  return words;
}

// Bytes of the first `count` characters.
std::size_t bytes_of(std::string_view text, std::int64_t count) {
  std::size_t at = 0;
  for (; count > 0 && at < text.size(); --count) {
    do ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  }
  return at;
}

// SQuAD's {"text": [..], "answer_start": [..]}, a list of {"text", "answer_start"}, or a text that
// is searched for.
void read_answers(const JsonPlace& row, const std::string& column, TextExample& example) {
  JsonPlace place = row.member(column);
  std::vector<double> starts;
  if (place.is_object()) {
    JsonPlace texts = place.member("text");
    if (texts.is_list()) {
      starts = place.member("answer_start").numbers();
      if (starts.empty()) return;
      for (const JsonPlace& text : texts.entries("answers")) {
        example.labels.push_back(text.scalar_text());
      }
    } else {
      example.labels = {texts.scalar_text()};
      starts = {place.member("answer_start").number()};
    }
  } else if (place.is_list()) {
    for (const JsonPlace& each : place.entries("answers")) {
      example.labels.push_back(each.is_object() ? text_of(each, "text") : each.scalar_text());
      if (each.is_object()) starts.push_back(each.member("answer_start").number());
    }
  } else {
    example.labels = {place.scalar_text()};
  }
  if (example.labels.empty()) return;
  const std::string& answer = example.labels.front();
  const std::size_t at = starts.empty()
                             ? example.pair.find(answer)
                             : bytes_of(example.pair, static_cast<std::int64_t>(starts.front()));
  BEV_CHECK(at != std::string::npos && example.pair.compare(at, answer.size(), answer) == 0,
            ErrorKind::kInput, place.where(), ": the text does not have the answer '", answer,
            "' at that place");
  example.answer_begin = static_cast<std::int64_t>(at);
}

void read_label(const JsonPlace& row, TextTask task, const std::string& column,
                TextExample& example) {
  if (task == TextTask::kSpans) return read_answers(row, column, example);
  if (task == TextTask::kTags) {
    example.labels = words_of(row, column);
    BEV_CHECK(example.labels.size() == example.words.size(), ErrorKind::kInput, row.where(), ": ",
              example.labels.size(), " ", column, " for ", example.words.size(), " words");
    return;
  }
  const std::string text = text_of(row, column);
  if (task == TextTask::kClasses) {
    example.labels = {text};
    return;
  }
  example.number = number_of<double>(trim(text));
  BEV_CHECK(example.number, ErrorKind::kInput, row.where(), ": ", column, " is '", text,
            "', which is no number");
}

TextExample example_of(const JsonPlace& row, TextTask task, const TextColumns& columns,
                       bool need_labels) {
  TextExample example;
  example.where = row.where();
  if (row.has("id")) {
    JsonPlace id = row.member("id");
    example.id = id.scalar_text();
    example.id_is_text = std::string_view(id.type_name()) == "string";
  }
  if (task == TextTask::kTags) {
    example.words = words_of(row, columns.text);
    BEV_CHECK(!example.words.empty(), ErrorKind::kInput, row.where(), ": ", columns.text,
              " has no word");
  } else {
    example.text = text_of(row, columns.text);
    const bool pair = task == TextTask::kSpans || row.has(columns.pair);
    if (pair) example.pair = text_of(row, columns.pair);
  }
  if (need_labels && !row.has(columns.label)) text_of(row, columns.label);
  if (row.has(columns.label)) read_label(row, task, columns.label, example);
  return example;
}

}  // namespace

TextColumns columns_of(TextTask task, TextColumns given) {
  TextColumns usual{"text", "text_pair", "label"};
  if (task == TextTask::kTags) usual = {"tokens", "", "tags"};
  if (task == TextTask::kSpans) usual = {"question", "context", "answers"};
  if (!given.text.empty()) usual.text = given.text;
  if (!given.pair.empty()) usual.pair = given.pair;
  if (!given.label.empty()) usual.label = given.label;
  return usual;
}

std::vector<TextExample> read_text_examples(const std::string& path, TextTask task,
                                            const TextColumns& columns, bool need_labels) {
  const TextColumns names = columns_of(task, columns);
  std::vector<TextExample> examples;
  for (const JsonPlace& row : read_table(path)) {
    // A pair that was asked for must be there.
    if (!columns.pair.empty() && !row.has(names.pair)) text_of(row, names.pair);
    examples.push_back(example_of(row, task, names, need_labels));
  }
  return examples;
}

std::vector<std::string> label_names(const std::vector<TextExample>& examples) {
  std::set<std::string> all;
  for (const TextExample& example : examples)
    all.insert(example.labels.begin(), example.labels.end());
  std::vector<std::string> names(all.begin(), all.end());
  auto value = [](const std::string& name) { return number_of<std::int64_t>(name); };
  if (std::ranges::all_of(names, [&](const auto& name) { return value(name).has_value(); })) {
    std::ranges::sort(names, {}, value);
  }
  return names;
}

}  // namespace bev
