// What a model with a head for labels says of examples, and how it is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/labelled/example_encoder.h"
#include "models/config.h"
#include "parallel/rank_model.h"

namespace bev {

// What the head says of one example; the members that its task has.
struct Prediction {
  std::vector<double> logits;       // kClasses
  std::int32_t label = -1;          // kClasses
  double value = 0;                 // kNumber
  std::vector<std::int32_t> tags;   // kTags: of each word; -1: the word was cut off
  std::string answer;               // kSpans; "": none
  std::int64_t start = 0, end = 0;  // its place in characters of the text
  double score = 0;                 // its probability
};

// The task of a model's head; throws Error(kConfig) if it has none.
TextTask task_of(const ModelConfig& model);
// How texts become tokens for a model, whose files are in `folder`: longer texts than the model
// has positions lose their end.
ExampleFormat format_of(const ModelConfig& model, const std::string& folder);

// Predictions of all examples, on world rank 0. Collective.
std::vector<Prediction> predict(RankModel& model, const ExampleEncoder& encoder,
                                const std::vector<TextExample>& examples);

// The object of an example: {id, label, label_id, scores, logits}, {id, value}, {id, labels} or
// {id, answer, start, end, score}.
std::string prediction_json(const ExampleFormat& format, const TextExample& example,
                            std::size_t number, const Prediction& prediction);

}  // namespace bev
