// The micro-batch of one rank: tokens, targets, and optional named fields known only to the code
// that reads them.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/sequence_layout.h"

namespace bev {

// Name of a batch field: a constant declared where the field is read. The text appears only in
// files and messages.
struct FieldId {
  std::string_view name;
  bool operator==(const FieldId&) const = default;
};

// What a row of a field corresponds to.
enum class FieldRows : std::uint8_t {
  kTokens,   // one token of the micro-batch, split over context-parallel ranks like the tokens
  kSamples,  // one sample, the same on all ranks that share the micro-batch
  kOwn,      // one token of another sequence of the sample (encoder input), split on its own
};

struct BatchField {
  FieldId id;
  FieldRows rows = FieldRows::kTokens;
  Tensor tensor;          // [T], [samples], or [T of `layout`]
  SequenceLayout layout;  // for FieldRows::kOwn
};

// Target token of each position and its weight in the loss.
struct LossTargets {
  Tensor targets;  // [T] i32, negative: ignored
  Tensor weights;  // [T] f32
  double weight_sum = 0;
};

// Input of one MTP (multi-token prediction) module: the future token embedded at each position, and
// the token to predict.
struct MtpTokens {
  Tensor tokens;  // [T] i32
  LossTargets targets;
};

// Number of MTP modules that a batch serves, and the loss weight of their targets.
struct MtpSpec {
  std::int64_t depths = 0;
  double weight = 0;
};

// Every pipeline stage gets the micro-batch from its own loader.
struct MicroBatch {
  SequenceLayout layout;
  Tensor tokens;               // [T] i32
  LossTargets targets;         // used by the last stage; may be empty for logits
  std::vector<MtpTokens> mtp;  // one per MTP module, if the model trains them
  std::vector<BatchField> fields;

  // Returns nullptr if the batch has no such field.
  const BatchField* find(FieldId id) const;
  // Throws Error(kInput) naming the field if it is missing.
  const BatchField& field(FieldId id) const;
};

// Calls visit(tensor of `from`, tensor of `to`) for each pair of tensors of two micro-batches of
// the same shape.
template <class Visit>
void for_tensors(const SequenceLayout& from, SequenceLayout& to, const Visit& visit) {
  for (Tensor SequenceLayout::*tensor :
       {&SequenceLayout::positions, &SequenceLayout::samples, &SequenceLayout::sample_positions,
        &SequenceLayout::batch_samples, &SequenceLayout::first_rows}) {
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
  for (std::size_t depth = 0; depth < from.mtp.size(); ++depth) {
    visit(from.mtp[depth].tokens, to.mtp[depth].tokens);
    visit_targets(from.mtp[depth].targets, to.mtp[depth].targets);
  }
  for_tensors(from.layout, to.layout, visit);
  for (std::size_t i = 0; i < from.fields.size(); ++i) {
    visit(from.fields[i].tensor, to.fields[i].tensor);
    for_tensors(from.fields[i].layout, to.fields[i].layout, visit);
  }
}

}  // namespace bev
