#include "posttrain/reference_model.h"

#include "base/error.h"
#include "bridge/hf_model.h"

namespace bev {

std::unique_ptr<RankModel> open_reference(RankModel& policy, const std::string& folder,
                                          const char* flag, double logit_factor) {
  ModelOptions options = policy.options();
  std::int64_t vocabulary = options.model.vocab_size;
  options.model = read_hf_config(folder);
  options.model.logit_scale *= logit_factor;
  options.gradients = false;
  BEV_CHECK(options.model.vocab_size == vocabulary, ErrorKind::kInput, flag, " ", folder,
            ": has a vocabulary of ", options.model.vocab_size, " and the model one of ",
            vocabulary, "; give a model of the same tokens");
  auto reference = std::make_unique<RankModel>(policy.rank(), options);
  load_hf_weights(*reference, folder);
  return reference;
}

}  // namespace bev
