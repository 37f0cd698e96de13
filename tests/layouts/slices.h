// Small custom architectures and objectives, each in a file that uses only public headers: the use
// cases that the interfaces must support. slices_test.cpp trains them under every kind of layout.
#pragma once

#include "models/model.h"
#include "parallel/objective.h"

namespace bev::test {

// A decoder whose odd layers have a gated linear recurrence instead of attention.
const Architecture* hybrid_architecture();

// The first half of the layers encodes the field kSourceTokens, the second half decodes with cross
// attention to it. Embeddings are shared and tied to the output layer.
const Architecture* encoder_decoder_architecture();
inline constexpr FieldId kSourceTokens{"source_tokens"};  // i32, a sequence of its own

// Direct preference optimisation (DPO): samples come in pairs, the chosen one first;
// log-probabilities of a reference model are a batch field with one value per sample.
const Objective& pairwise_objective();
inline constexpr FieldId kReferenceLogProbs{"reference_logprobs"};  // f64
inline constexpr double kPairwiseBeta = 0.5;
// Log-probabilities [samples] of the targets of a micro-batch, from the output of the last stage.
Var sample_log_probs(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                     const Var& final);

}  // namespace bev::test
