#include "tokenizer/pipeline/post_processor.h"

#include "base/error.h"

namespace bev {

namespace {

std::int32_t id_of(const JsonValue& json) { return static_cast<std::int32_t>(json.as_integer()); }

}  // namespace

PostProcessor::PostProcessor(const JsonValue& json) {
  if (json.is_null()) return;
  const std::string type = json.need_text("type");
  if (type == "Sequence") {
    for (const JsonValue& step : json.need_array("processors")) {
      PostProcessor made(step);
      templates_.insert(templates_.end(), made.templates_.begin(), made.templates_.end());
    }
  } else if (type == "TemplateProcessing") {
    add_template(json);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    add_pair(json);
  } else {
    // ByteLevel changes offsets only.
    BEV_CHECK(type == "ByteLevel", ErrorKind::kInput, json.source(), ": the post-processor \"",
              type, "\" is not known");
  }
}

PostProcessor::PostProcessor(std::vector<std::int32_t> before, std::vector<std::int32_t> after)
    : templates_{{{false, std::move(before)}, {true, {}}, {false, std::move(after)}}} {}

void PostProcessor::add_template(const JsonValue& json) {
  Template parts;
  for (const JsonValue& piece : json.need_array("single")) {
    if (!piece["Sequence"].is_null()) {
      parts.push_back({true, {}});
      continue;
    }
    std::string name = piece["SpecialToken"].need_text("id");
    Part part;
    for (const JsonValue& id : json["special_tokens"][name].need_array("ids")) {
      part.ids.push_back(id_of(id));
    }
    parts.push_back(std::move(part));
  }
  templates_.push_back(std::move(parts));
}

// [CLS] text [SEP], each given as [token, id].
void PostProcessor::add_pair(const JsonValue& json) {
  auto token = [&](std::string_view key) {
    std::vector<JsonValue> pair = json.need_array(key);
    BEV_CHECK(pair.size() == 2, ErrorKind::kInput, json.source(), ": \"", key,
              "\" is not a token and its id");
    return id_of(pair[1]);
  };
  templates_.push_back({{false, {token("cls")}}, {true, {}}, {false, {token("sep")}}});
}

void PostProcessor::add_special_tokens(std::vector<std::int32_t>& ids) const {
  for (const Template& parts : templates_) {
    std::vector<std::int32_t> out;
    for (const Part& part : parts) {
      const std::vector<std::int32_t>& more = part.text ? ids : part.ids;
      out.insert(out.end(), more.begin(), more.end());
    }
    ids = std::move(out);
  }
}

}  // namespace bev
