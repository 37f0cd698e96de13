#include "train/masked_config.h"

#include "base/fields.h"

namespace bev {

void MaskedConfig::fields(FieldList& list) {
  list.section("masked samples");
  list.add("mask-prob", masking.probability, "share of the tokens that is masked")
      .above(0)
      .below(1);
  list.add("short-seq-prob", short_seq_prob, "share of samples that are cut shorter than others")
      .min(0)
      .max(1);
  list.add("bert-binary-head", bert_binary_head,
           "samples are pairs, half of them swapped, and the model has a head that tells which")
      .negated_by("bert-no-binary-head");
  list.add("masking-max-ngram", masking.max_ngram, "words that are masked together, at most")
      .min(1)
      .limit(1 << 16)
      .defaults_to("3, for t5 10");
  list.add("masking-full-word", masking.whole_words, "mask whole words, not pieces of them");
  list.add("masking-permutation", masking.permutation,
           "as many other tokens as are masked change places");
  list.add("masking-longer-ngrams", masking.longer_ngrams,
           "more words together are likelier than fewer");
  list.add("masking-geometric", masking.geometric,
           "draw how many words from a geometric distribution (SpanBERT); t5 does unless told "
           "--no-masking-geometric");
}

}  // namespace bev
