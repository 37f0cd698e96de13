#include "data/labelled/example_encoder.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "data/batch_file.h"
#include "data/encoder_sample.h"

namespace bev {

namespace {

// Cuts ends, one token at a time, of the longer list first.
void cut_longest(std::vector<std::int32_t>& a, std::vector<std::int32_t>& b, std::int64_t room) {
  while (std::ssize(a) + std::ssize(b) > room && !(a.empty() && b.empty())) {
    (a.size() > b.size() ? a : b).pop_back();
  }
}

// A word of a text, and its bytes.
struct WordPlace {
  std::size_t begin = 0, end = 0;
};
std::vector<WordPlace> words_in(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r";
  std::vector<WordPlace> words;
  for (std::size_t at = text.find_first_not_of(kBlanks); at != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
    words.push_back({at, end});
    at = text.find_first_not_of(kBlanks, end);
  }
  return words;
}

}  // namespace

ExampleEncoder::ExampleEncoder(const Tokenizer& tokenizer, const ExampleFormat& format)
    : tokenizer_(tokenizer), format_(format) {
  constexpr std::int32_t kMarker = -2;
  Ids around = {kMarker};
  tokenizer.add_special_tokens(around);
  auto at = std::ranges::find(around, kMarker);
  begin_.assign(around.begin(), at);
  end_.assign(at + 1, around.end());
  BEV_CHECK(!begin_.empty() && !end_.empty(), ErrorKind::kInput,
            "--tokenizer: adds no special tokens around a text ([CLS] and [SEP], say), which the "
            "heads of encoders read; give the tokenizer of an encoder");
}

ExampleEncoder::Ids ExampleEncoder::encode_word(const std::string& word, bool first) const {
  return tokenizer_.encode(first ? word : " " + word);
}

std::int32_t ExampleEncoder::label_of(const TextExample& example, const std::string& name) const {
  auto found = std::ranges::find(format_.labels, name);
  if (found != format_.labels.end()) {
    return static_cast<std::int32_t>(found - format_.labels.begin());
  }
  // A number stands for the label of that number.
  std::int32_t number = -1;
  const char* end = name.data() + name.size();
  auto [at, error] = std::from_chars(name.data(), end, number);
  BEV_CHECK(error == std::errc() && at == end && number >= 0 && number < std::ssize(format_.labels),
            ErrorKind::kInput, example.where, ": the label '", name, "' is none of ",
            join(format_.labels, ", "));
  return number;
}

// Tokens left for texts.
std::int64_t ExampleEncoder::room(bool pair) const {
  const std::int64_t separators =
      pair ? std::ssize(end_) * (format_.double_separator ? 3 : 2) : std::ssize(end_);
  return std::max<std::int64_t>(format_.max_length - std::ssize(begin_) - separators, 0);
}

TokenSample ExampleEncoder::whole(const Ids& text, const Ids& pair, bool has_pair) const {
  Ids tokens = begin_;
  auto append = [&](const Ids& ids) { tokens.insert(tokens.end(), ids.begin(), ids.end()); };
  append(text);
  append(end_);
  const std::size_t first = tokens.size();
  if (has_pair && format_.double_separator) append(end_);
  if (has_pair) {
    append(pair);
    append(end_);
  }
  Ids types;
  if (format_.token_types > 0) {
    types.resize(tokens.size());
    if (format_.token_types > 1)
      std::fill(types.begin() + static_cast<std::ptrdiff_t>(first), types.end(), 1);
  }
  return encoder_sample({tokens, types});
}

void ExampleEncoder::encode_texts(const TextExample& example, EncodedExample& out) const {
  const bool has_pair = !example.pair.empty();
  Ids text = tokenizer_.encode(example.text), pair;
  if (has_pair) pair = tokenizer_.encode(example.pair);
  cut_longest(text, pair, room(has_pair));
  out.sample = whole(text, pair, has_pair);
  if (example.number) {
    set_sample_number(out.sample, kClassLabels, *example.number);
    out.sample.weights.front() = 1;
  }
  if (example.labels.empty()) return;
  const std::int32_t label = label_of(example, example.labels.front());
  set_sample_label(out.sample, kClassLabels, label);
  out.sample.weights.front() =
      format_.weights.empty()
          ? 1.0f
          : static_cast<float>(format_.weights[static_cast<std::size_t>(label)]);
}

void ExampleEncoder::encode_tags(const TextExample& example, EncodedExample& out) const {
  Ids tokens;
  const auto most = static_cast<std::size_t>(room(false));
  for (std::size_t word = 0; word < example.words.size(); ++word) {
    const Ids part = encode_word(example.words[word], word == 0);
    const bool fits = !part.empty() && tokens.size() + part.size() <= most;
    out.word_tokens.push_back(fits ? static_cast<std::int32_t>(begin_.size() + tokens.size()) : -1);
    if (fits) tokens.insert(tokens.end(), part.begin(), part.end());
  }
  out.sample = whole(tokens, {}, false);
  for (std::size_t word = 0; word < example.labels.size(); ++word) {
    const std::int32_t label = label_of(example, example.labels[word]);
    if (out.word_tokens[word] < 0) continue;
    auto at = static_cast<std::size_t>(out.word_tokens[word]);
    out.sample.targets[at] = label;
    out.sample.weights[at] =
        format_.weights.empty()
            ? 1.0f
            : static_cast<float>(format_.weights[static_cast<std::size_t>(label)]);
  }
}

void ExampleEncoder::encode_spans(const TextExample& example, EncodedExample& out) const {
  Ids question = tokenizer_.encode(example.text), context;
  const std::int64_t all = room(true);
  if (std::ssize(question) > all / 2) question.resize(static_cast<std::size_t>(all / 2));
  const std::int64_t most = all - std::ssize(question);
  const auto answer_begin =
      static_cast<std::size_t>(std::max<std::int64_t>(example.answer_begin, 0));
  const std::size_t answer_end =
      answer_begin + (example.labels.empty() ? 0 : example.labels.front().size());
  std::int32_t start = -1, end = -1;
  for (const WordPlace& word : words_in(example.pair)) {
    const std::string text = example.pair.substr(word.begin, word.end - word.begin);
    const Ids part = encode_word(text, context.empty());
    if (std::ssize(context) + std::ssize(part) > most) break;
    const bool inside =
        example.answer_begin >= 0 && word.end > answer_begin && word.begin < answer_end;
    if (inside && start < 0) start = static_cast<std::int32_t>(context.size());
    context.insert(context.end(), part.begin(), part.end());
    if (inside) end = static_cast<std::int32_t>(context.size()) - 1;
    out.begins.insert(out.begins.end(), part.size(), static_cast<std::int32_t>(word.begin));
    out.ends.insert(out.ends.end(), part.size(), static_cast<std::int32_t>(word.end));
  }
  const std::size_t separators = end_.size() * (format_.double_separator ? 2 : 1);
  out.first_token = static_cast<std::int32_t>(begin_.size() + question.size() + separators);
  out.sample = whole(question, context, true);
  out.answer_cut = example.answer_begin >= 0 && (start < 0 || end < start);
  // A question without an answer has the first token as its span.
  const bool found = start >= 0 && !out.answer_cut;
  set_sample_label(out.sample, kStartPositions, found ? out.first_token + start : 0);
  set_sample_label(out.sample, kEndPositions, found ? out.first_token + end : 0);
}

EncodedExample ExampleEncoder::encode(const TextExample& example) const {
  EncodedExample out;
  switch (format_.task) {
    case TextTask::kClasses:
    case TextTask::kNumber:
      encode_texts(example, out);
      break;
    case TextTask::kTags:
      encode_tags(example, out);
      break;
    case TextTask::kSpans:
      encode_spans(example, out);
  }
  return out;
}

}  // namespace bev
