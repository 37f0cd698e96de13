#include "reward/row_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 64;

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

const Json* find(const Json& row, const std::string& key) {
  auto found = row.find(key);
  return found == row.end() || found->is_null() ? nullptr : &*found;
}

void set_label(const Json& object, const std::string& key, PromptRow& row) {
  const Json* label = find(object, key.empty() ? "label" : key);
  if (label == nullptr && key.empty()) label = find(object, "answer");
  BEV_CHECK(label != nullptr || key.empty(), ErrorKind::kInput, row.where, ": has no ", quote(key),
            ", the --label-key");
  row.has_label = label != nullptr;
  if (label != nullptr) row.label = text_of(*label);
}

void set_completion(const Json& object, PromptRow& row) {
  const Json* completion = find(object, "completion");
  if (completion == nullptr) return;
  row.has_completion = true;
  if (completion->is_array() && !completion->empty() && completion->back().is_object()) {
    const Json* content = find(completion->back(), "content");
    BEV_CHECK(content != nullptr && content->is_string(), ErrorKind::kInput, row.where,
              ": the last message of the completion has no text as its content");
    row.completion = content->get<std::string>();
    return;
  }
  BEV_CHECK(completion->is_string(), ErrorKind::kInput, row.where,
            ": the completion is neither a text nor a list of messages");
  row.completion = completion->get<std::string>();
}

PromptRow read_row(std::string_view line, const std::string& where, const std::string& label_key) {
  check_json(line, where, kMostDepth);
  Json object = Json::parse(line);
  BEV_CHECK(object.is_object(), ErrorKind::kInput, where,
            ": is no object; give {\"prompt\": .., \"label\": ..} on each line");
  PromptRow row{.where = where, .columns = std::string(line)};
  const Json* prompt = find(object, "prompt");
  BEV_CHECK(prompt != nullptr && (prompt->is_string() || prompt->is_array()), ErrorKind::kInput,
            where, ": has no \"prompt\" that is a text or a list of messages");
  row.messages = prompt->is_array();
  row.prompt = text_of(*prompt);
  if (const Json* id = find(object, "id")) row.id = id->dump();
  set_label(object, label_key, row);
  set_completion(object, row);
  return row;
}

}  // namespace

std::vector<PromptRow> read_prompt_rows(const std::vector<std::string>& files,
                                        const std::string& label_key) {
  std::vector<PromptRow> rows;
  for (const std::string& file : files) {
    BEV_CHECK(path_exists(file) && !is_directory(file), ErrorKind::kInput, file, ": is no file");
    const std::string text = read_file(file);
    std::vector<std::string> lines = split(text, '\n');
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (trim(lines[i]).empty()) continue;
      rows.push_back(read_row(trim(lines[i]), concat(file, ":", i + 1), label_key));
    }
  }
  BEV_CHECK(!rows.empty(), ErrorKind::kInput, join(files, ", "), ": has no prompt");
  return rows;
}

}  // namespace bev
