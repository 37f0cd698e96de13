#include "app/idle_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/options.h"
#include "app/run_config.h"
#include "base/fields.h"
#include "base/text.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> idle(const std::string& flags) {
  RunConfig run;
  FieldList list;
  run.fields(list);
  Options options = parse_options(list, split(flags, ' '));
  EXPECT_THAT(options.problems(), IsEmpty()) << flags;
  return idle_flags(options, list, run);
}

TEST(IdleFlags, OfExpertsNameWhatIsMissing) {
  EXPECT_THAT(idle("--moe-router-topk 2 --moe-aux-loss-coeff 0.1"),
              ElementsAre("--moe-router-topk: --moe-router-topk is for experts, of which the model "
                          "has none; give --num-experts or leave it out",
                          HasSubstr("--moe-aux-loss-coeff is for experts")));
}

struct Row {
  const char* flags;  // idle on their own
  const char* with;   // flags that make them effective
};

TEST(IdleFlags, ActWithTheirPart) {
  for (const Row& row : {
           Row{"--moe-router-topk 2", "--num-experts 4"},
           Row{"--moe-token-dispatcher-type allgather", "--num-experts 4"},
           Row{"--q-lora-rank 8", "--multi-latent-attention"},
           Row{"--rotary-base 500", "--position-embedding-type rope"},
           Row{"--rope-scaling-factor 2", "--rope-scaling-type linear"},
           Row{"--rope-low-freq-factor 2", "--use-rope-scaling"},
           Row{"--mscale 1", "--rope-type yarn"},
           Row{"--rope-attention-factor 1", "--rope-type longrope"},
           Row{"--longrope-short-factor 1", "--rope-type longrope"},
           Row{"--mtp-loss-scaling-factor 0.2", "--mtp-num-layers 1"},
           Row{"--fp8-recipe tensorwise", "--fp8-format e4m3"},
           Row{"--fp8-margin 1", "--fp4-format e2m1"},
           Row{"--no-fp8-wgrad", "--fp8-format hybrid"},
           Row{"--fp8-param-gather", "--fp8-format hybrid"},
           Row{"--fp8-amax-history-len 4", "--fp8-format hybrid"},
           Row{"--num-layers-at-end-in-bf16 2", "--first-last-layers-bf16 --fp8-format hybrid"},
           Row{"--fp4-recipe mxfp4", "--fp4-format e2m1"},
           Row{"--sgd-momentum 0.5", "--optimizer sgd"},
           Row{"--lion-beta1 0.5", "--optimizer muon --muon-scalar-optimizer lion"},
           Row{"--lion-beta2 0.5", "--optimizer lion"},
           Row{"--muon-no-split-qkv", "--optimizer muon"},
           Row{"--adafactor-eps2 1", "--optimizer adafactor"},
           Row{"--soap-shampoo-beta 0.5", "--optimizer soap"},
           Row{"--lr-wsd-decay-iters 5", "--lr-decay-style WSD"},
           Row{"--decoupled-min-lr 0", "--decoupled-lr 0.1"},
           Row{"--recompute-num-layers 2", "--recompute-granularity full"},
           Row{"--recompute-modules mlp", "--recompute-activations"},
           Row{"--min-offloaded-tensor-size 4", "--cpu-offloading-num-layers 1"},
           Row{"--activation-offload-fraction 0.5", "--fine-grained-activation-offloading"},
           Row{"--sft-too-long drop", "--sft-data x"},
           Row{"--no-data-sharding", "--dataloader-type cyclic"},
           Row{"--profile-step-end 20", "--profile-trace x"},
           Row{"--tensorboard-log-interval 2", "--tensorboard-dir x"},
           Row{"--no-save-optim", "--save x"},
           Row{"--log-progress", "--save x"},
           Row{"--start-eval-at-iter 3", "--eval-interval 1"},
           Row{"--non-persistent-local-ckpt-dir x", "--non-persistent-save-interval 5"},
           Row{"--no-replication",
               "--non-persistent-save-interval 5 --non-persistent-ckpt-type local"},
           Row{"--no-load-rng", "--load x"},
       }) {
    EXPECT_EQ(idle(row.flags).size(), 1) << row.flags;
    EXPECT_THAT(idle(concat(row.flags, " ", row.with)), IsEmpty());
  }
  EXPECT_THAT(idle("--adam-beta1 0.8"), IsEmpty());
  EXPECT_THAT(idle("--adam-beta1 0.8 --optimizer sgd"), ElementsAre(HasSubstr("is for Adam")));
  EXPECT_THAT(idle("--fp8-amax-history-len 4 --fp8-format e4m3 --fp8-recipe blockwise"),
              ElementsAre(HasSubstr("delayed scales")));
}

// A script may reuse another script's flags and disable a feature.
TEST(IdleFlags, MayStayWhereTheirPartIsSwitchedOff) {
  EXPECT_THAT(idle("--moe-router-topk 2 --num-experts 0"), IsEmpty());
  EXPECT_THAT(idle("--fp8-recipe delayed --fp8-amax-history-len 4 --fp8-format none"), IsEmpty());
  EXPECT_THAT(idle("--recompute-modules mlp --recompute-granularity none"), IsEmpty());
  EXPECT_THAT(idle("--recompute-modules mlp --recompute-granularity full"),
              ElementsAre(HasSubstr("parts of layers")));
}

}  // namespace
}  // namespace bev
