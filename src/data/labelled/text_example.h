// Examples of the tasks that encoders are fine-tuned for: texts with a class or a number, words
// with tags, questions with answers in a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/sft/json_rows.h"

namespace bev {

enum class TextTask : std::uint8_t { kClasses, kNumber, kTags, kSpans };

// Names of the columns; "": the usual ones of the task. `pair` is the second text; answers of
// kSpans stand in it.
struct TextColumns {
  std::string text, pair, label;
};
// The same with the usual names filled in: text, text_pair, label; tokens, tags; question, context,
// answers.
TextColumns columns_of(TextTask task, TextColumns given);

struct TextExample {
  std::string where;               // for messages
  std::string id;                  // "": none
  bool id_is_text = true;          // else a number
  std::string text, pair;          // pair "": none
  std::vector<std::string> words;  // of kTags
  // The class, the tags of the words, or the right answers; empty: none are given.
  std::vector<std::string> labels;
  std::optional<double> number;
  std::int64_t answer_begin = -1;  // of the first answer, in bytes of `pair`; -1: none
};

// The examples of a file (table_file.h). Labels may be missing unless they are needed. Throws
// Error(kInput) naming line and column.
std::vector<TextExample> read_text_examples(const std::string& path, TextTask task,
                                            const TextColumns& columns, bool need_labels);

// All labels, in order: numbers by value if they are whole numbers, else by text.
std::vector<std::string> label_names(const std::vector<TextExample>& examples);

}  // namespace bev
