#include "app/predictions.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "bridge/hf_model.h"
#include "infer/model_outputs.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kBatchTokens = 8192;
constexpr std::int32_t kLongestAnswer = 30;  // tokens

std::vector<double> softmax(std::span<const double> logits) {
  const double most = *std::ranges::max_element(logits);
  std::vector<double> out;
  double sum = 0;
  for (double logit : logits) sum += out.emplace_back(std::exp(logit - most));
  for (double& share : out) share /= sum;
  return out;
}

std::int32_t largest(std::span<const double> values) {
  return static_cast<std::int32_t>(std::ranges::max_element(values) - values.begin());
}

std::int64_t characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// The likeliest span within the second text; none if the first token is likelier.
Prediction best_span(const TextExample& example, const EncodedExample& encoded,
                     std::span<const double> starts, std::span<const double> ends) {
  const std::vector<double> first = softmax(starts), last = softmax(ends);
  Prediction out;
  std::size_t begin = 0, end = 0;
  for (std::size_t i = 0; i < encoded.begins.size(); ++i) {
    const std::size_t most = std::min(encoded.begins.size(), i + kLongestAnswer);
    for (std::size_t j = i; j < most; ++j) {
      const auto at = static_cast<std::size_t>(encoded.first_token);
      const double score = first[at + i] * last[at + j];
      if (score <= out.score) continue;
      out.score = score;
      begin = static_cast<std::size_t>(encoded.begins[i]);
      end = static_cast<std::size_t>(encoded.ends[j]);
    }
  }
  if (first.front() * last.front() > out.score) {
    out.score = first.front() * last.front();
    return out;
  }
  out.answer = example.pair.substr(begin, end - begin);
  out.start = characters(std::string_view(example.pair).substr(0, begin));
  out.end = out.start + characters(out.answer);
  return out;
}

// The rows of one output for each sample, on world rank 0.
std::vector<std::vector<double>> rows_of(RankModel& model, std::string_view name,
                                         std::span<const TokenSample> samples) {
  std::int64_t longest = 1;
  for (const TokenSample& sample : samples) longest = std::max(longest, std::ssize(sample.tokens));
  std::vector<std::vector<double>> rows;
  for (const ModelOutput& output : outputs_of(model.options().model)) {
    if (output.name != name) continue;
    compute_output(model, output, samples, std::max<std::int64_t>(kBatchTokens / longest, 1),
                   [&](std::span<const double> row) { rows.emplace_back(row.begin(), row.end()); });
  }
  return rows;
}

Prediction predict_tags(const EncodedExample& encoded, std::span<const double> logits,
                        std::size_t labels) {
  Prediction out;
  for (std::int32_t token : encoded.word_tokens) {
    out.tags.push_back(
        token < 0 ? -1 : largest(logits.subspan(static_cast<std::size_t>(token) * labels, labels)));
  }
  return out;
}

Json id_of(const TextExample& example, std::size_t number) {
  if (example.id.empty()) return number;
  return example.id_is_text ? Json(example.id) : Json::parse(example.id);
}

}  // namespace

TextTask task_of(const ModelConfig& model) {
  switch (model.encoder.labels) {
    case LabelKind::kSequence:
      return model.num_labels == 1 ? TextTask::kNumber : TextTask::kClasses;
    case LabelKind::kTokens:
      return TextTask::kTags;
    case LabelKind::kSpans:
      return TextTask::kSpans;
    case LabelKind::kNone:
      break;
  }
  BEV_FAIL(ErrorKind::kConfig,
           "--hf-model: the model is no encoder with a head for labels; `train --objective "
           "classification`, regression, token-classification or spans makes one");
}

ExampleFormat format_of(const ModelConfig& model, const std::string& folder) {
  ExampleFormat format;
  format.task = task_of(model);
  const bool described = !folder.empty() && path_exists(join_path(folder, "config.json"));
  if (described) format.labels = read_label_names(folder);
  const auto count = static_cast<std::size_t>(model.num_labels);
  if (format.labels.size() != count) format.labels.clear();
  while (format.labels.size() < count) {
    format.labels.push_back(concat("LABEL_", format.labels.size()));
  }
  format.max_length = model.max_position_embeddings;
  format.token_types = model.encoder.token_types;
  format.double_separator = model.family == "roberta";
  return format;
}

std::vector<Prediction> predict(RankModel& model, const ExampleEncoder& encoder,
                                const std::vector<TextExample>& examples) {
  std::vector<EncodedExample> encoded;
  std::vector<TokenSample> samples;
  for (const TextExample& example : examples) {
    TextExample unlabelled = example;
    unlabelled.labels.clear();
    unlabelled.number.reset();
    unlabelled.answer_begin = -1;
    encoded.push_back(encoder.encode(unlabelled));
    samples.push_back(encoded.back().sample);
  }
  const TextTask task = encoder.format().task;
  const bool spans = task == TextTask::kSpans;
  auto rows = rows_of(model, spans ? "start_logits" : "logits", samples);
  std::vector<std::vector<double>> ends;
  if (spans) ends = rows_of(model, "end_logits", samples);
  std::vector<Prediction> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (spans) {
      out.push_back(best_span(examples[i], encoded[i], rows[i], ends[i]));
    } else if (task == TextTask::kTags) {
      out.push_back(predict_tags(encoded[i], rows[i], encoder.format().labels.size()));
    } else if (task == TextTask::kNumber) {
      out.emplace_back().value = rows[i].front();
    } else {
      Prediction& prediction = out.emplace_back();
      prediction.label = largest(rows[i]);
      prediction.logits = rows[i];
    }
  }
  return out;
}

std::string prediction_json(const ExampleFormat& format, const TextExample& example,
                            std::size_t number, const Prediction& prediction) {
  auto name = [&](std::int32_t label) {
    return label < 0 ? Json() : Json(format.labels[static_cast<std::size_t>(label)]);
  };
  Json line{{"id", id_of(example, number)}};
  switch (format.task) {
    case TextTask::kClasses:
      line["label"] = name(prediction.label);
      line["label_id"] = prediction.label;
      line["scores"] = softmax(prediction.logits);
      line["logits"] = prediction.logits;
      break;
    case TextTask::kNumber:
      line["value"] = prediction.value;
      break;
    case TextTask::kTags:
      line["labels"] = Json::array();
      for (std::int32_t tag : prediction.tags) line["labels"].push_back(name(tag));
      break;
    case TextTask::kSpans:
      line["answer"] = prediction.answer;
      line["start"] = prediction.start;
      line["end"] = prediction.end;
      line["score"] = prediction.score;
  }
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace bev
