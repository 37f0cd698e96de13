// What one rank computes on: the tokens of a micro-batch, what they should predict, and any number
// of named fields that only the code that reads them knows.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/sequence_layout.h"

namespace bev {

// Name of a batch field: a constant, declared where the field is read. The text appears in files
// and messages only.
struct FieldId {
  std::string_view name;
  bool operator==(const FieldId&) const = default;
};

// What the rows of a field stand for.
enum class FieldRows : std::uint8_t {
  kTokens,   // one per token of the micro-batch, cut over context-parallel ranks as the tokens are
  kSamples,  // one per sample, the same on all ranks that share the micro-batch
  kOwn,      // tokens of another sequence of each sample (an encoder's input), cut by themselves
};

struct BatchField {
  FieldId id;
  FieldRows rows = FieldRows::kTokens;
  Tensor tensor;          // [T], [samples], or [T of `layout`]
  SequenceLayout layout;  // of FieldRows::kOwn
};

// What tokens should predict, and how much each prediction weighs in the loss.
struct LossTargets {
  Tensor targets;  // [T] i32, negative: ignored
  Tensor weights;  // [T] f32
  double weight_sum = 0;
};

// What one depth of multi-token prediction (MTP) reads: the token it is given besides each token,
// and the one that it should predict.
struct FutureTokens {
  Tensor tokens;  // [T] i32
  LossTargets targets;
};

// The depths of MTP that a batch serves, and the weight of each depth's targets.
struct FutureSpec {
  std::int64_t depths = 0;
  double weight = 0;
};

// Every pipeline stage gets it from its own loader.
struct MicroBatch {
  SequenceLayout layout;
  Tensor tokens;                     // [T] i32
  LossTargets targets;               // used by the last stage; may be empty for logits
  std::vector<FutureTokens> future;  // one for each depth of MTP, where the model trains them
  std::vector<BatchField> fields;

  // nullptr where the batch has no such field.
  const BatchField* find(FieldId id) const;
  // Error(kInput) naming a field that is missing.
  const BatchField& field(FieldId id) const;
};

// Calls visit(tensor of `from`, tensor of `to`) for each pair of tensors of two micro-batches of
// the same shape.
template <class Visit>
void for_tensors(const SequenceLayout& from, SequenceLayout& to, const Visit& visit) {
  for (Tensor SequenceLayout::*tensor :
       {&SequenceLayout::positions, &SequenceLayout::samples, &SequenceLayout::sample_positions,
        &SequenceLayout::batch_samples}) {
    visit(from.*tensor, to.*tensor);
  }
  for (ContextRows SequenceLayout::*rows :
       {&SequenceLayout::ring, &SequenceLayout::mixed, &SequenceLayout::heads}) {
    visit((from.*rows).samples, (to.*rows).samples);
    visit((from.*rows).sample_positions, (to.*rows).sample_positions);
  }
}

template <class Visit>
void for_tensors(const MicroBatch& from, MicroBatch& to, const Visit& visit_each) {
  auto visit = [&](const Tensor& of_from, Tensor& of_to) {
    if (!of_from.empty()) visit_each(of_from, of_to);
  };
  auto visit_targets = [&](const LossTargets& of_from, LossTargets& of_to) {
    visit(of_from.targets, of_to.targets);
    visit(of_from.weights, of_to.weights);
  };
  visit(from.tokens, to.tokens);
  visit_targets(from.targets, to.targets);
  for (std::size_t depth = 0; depth < from.future.size(); ++depth) {
    visit(from.future[depth].tokens, to.future[depth].tokens);
    visit_targets(from.future[depth].targets, to.future[depth].targets);
  }
  for_tensors(from.layout, to.layout, visit);
  for (std::size_t i = 0; i < from.fields.size(); ++i) {
    visit(from.fields[i].tensor, to.fields[i].tensor);
    for_tensors(from.fields[i].layout, to.fields[i].layout, visit);
  }
}

}  // namespace bev
