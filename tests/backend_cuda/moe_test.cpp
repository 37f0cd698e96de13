#include "kernels/moe.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "kernels/optim.h"
#include "kernels/router.h"
#include "tensor/random_rows.h"
#include "tensor/routing_rule.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

class CudaMoe : public CudaRig {
 protected:
  Twin integers(const Shape& shape) {
    Twin out = words(std::vector<std::int32_t>(static_cast<std::size_t>(shape.numel()), -7));
    return {out.exact.reshape(shape), out.device.reshape(shape)};
  }
  std::vector<std::int32_t> fetched(const Tensor& tensor) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(tensor.numel()));
    cuda().device.fetch(cuda_stream(), tensor, out.data()).wait();
    return out;
  }
  static std::vector<std::int32_t> host(const Tensor& tensor) {
    const auto* data = tensor.as<std::int32_t>();
    return {data, data + tensor.numel()};
  }
  // Random distinct experts for each of T tokens.
  Twin choices(std::int64_t tokens, std::int64_t experts, std::int64_t topk) {
    Twin logits = random(Dtype::kF32, {tokens, experts});
    Twin chosen = integers({tokens, topk}), probs = poisoned(Dtype::kF32, {tokens, topk});
    RoutingRule rule;
    rule.topk = topk;
    cpu().router.route(cpu_stream(), {logits.exact, {}, chosen.exact, probs.exact, rule});
    cuda().device.upload(cuda_stream(), chosen.exact.view().data, chosen.device);
    return chosen;
  }
};

struct RuleCase {
  const char* name;
  std::int64_t experts;
  RoutingRule rule;
};
const std::vector<RuleCase> kRules = {
    {"softmax", 8, {.topk = 2}},
    {"softmax of all", 60, {.topk = 4, .pre_softmax = true, .scaling = 1.5}},
    {"sigmoid", 128, {.topk = 8, .score = RouterScore::kSigmoid, .scaling = 2.5}},
    {"not normalised", 33, {.topk = 3, .score = RouterScore::kSigmoid, .normalize = false}},
    {"one by itself", 6, {.topk = 1, .score = RouterScore::kSigmoid, .scaling = 2.5}},
    {"sqrtsoftplus", 5, {.topk = 5, .score = RouterScore::kSqrtSoftplus}},
    {"groups",
     256,
     {.topk = 8, .score = RouterScore::kSigmoid, .groups = 8, .group_topk = 4, .group_experts = 2}},
    {"many", 1000, {.topk = 40}},
    {"by logit",
     12,
     {.topk = 1, .score = RouterScore::kSigmoid, .normalize = false, .by_logit = true}},
};

TEST_F(CudaMoe, RoutingAndItsGradientMatchTheCpu) {
  for (const RuleCase& item : kRules) {
    for (std::int64_t tokens : {0, 1, 77}) {
      SCOPED_TRACE(concat(item.name, " ", tokens, " tokens"));
      const std::int64_t experts = item.experts, topk = item.rule.topk;
      const bool biased = item.rule.score != RouterScore::kSoftmax;
      Twin logits = random(Dtype::kF32, {tokens, experts}, 3);
      Twin bias = random(Dtype::kBf16, {experts}, 0.1);
      Twin chosen = integers({tokens, topk}), probs = poisoned(Dtype::kF32, {tokens, topk});
      auto route = [&](Tensor Twin::*side) {
        return RouteArgs{logits.*side, biased ? (bias.*side).view() : View(), chosen.*side,
                         probs.*side, item.rule};
      };
      cpu().router.route(cpu_stream(), route(&Twin::exact));
      cuda().router.route(cuda_stream(), route(&Twin::device));
      EXPECT_EQ(fetched(chosen.device), host(chosen.exact));
      EXPECT_LT(error(probs), 1e-5);

      Twin counts = poisoned(Dtype::kF32, {1, experts}),
           scores = poisoned(Dtype::kF32, {1, experts});
      Twin totals = poisoned(Dtype::kF32, {2});
      auto load = [&](Tensor Twin::*side) {
        return RouterLoadArgs{logits.*side, chosen.*side, nullptr,     item.rule,
                              counts.*side, scores.*side, totals.*side};
      };
      cpu().router.router_load(cpu_stream(), load(&Twin::exact));
      cuda().router.router_load(cuda_stream(), load(&Twin::device));
      EXPECT_EQ(error(counts), 0);
      EXPECT_LT(error(scores), 1e-5);
      EXPECT_LT(error(totals), 1e-5);

      Twin dprobs = random(Dtype::kF32, {tokens, topk});
      Twin dlogits = poisoned(Dtype::kF32, {tokens, experts}), factor = words<double>({0.3});
      auto backward = [&](Tensor Twin::*side) {
        BalanceTerm term{counts.*side, nullptr, 0.2};
        const RouteBackwardArgs args{.dprobs = (dprobs.*side).view(),
                                     .logits = (logits.*side).view(),
                                     .experts = (chosen.*side).view(),
                                     .dlogits = (dlogits.*side).view(),
                                     .rule = item.rule,
                                     .balance = {&term, 1},
                                     .z_coefficient = 0.1,
                                     .factor = (factor.*side).as<double>()};
        const bool exact = side == &Twin::exact;
        (exact ? cpu() : cuda()).router.route_backward(exact ? cpu_stream() : cuda_stream(), args);
      };
      backward(&Twin::exact);
      backward(&Twin::device);
      EXPECT_LT(error(dlogits), 2e-5);
    }
  }
}

TEST_F(CudaMoe, JitterDrawsTheCpusNumbers) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t columns : {1, 7, 64, 1030}) {
      SCOPED_TRACE(concat(name_of(dtype), " ", columns));
      const std::int64_t rows = 45;
      std::vector<std::int32_t> samples, positions;
      for (std::int32_t row = 0; row < rows; ++row) {
        samples.push_back(row / 7);
        positions.push_back(row % 7 * 1000);
      }
      Twin x = random(dtype, {rows, columns}), y = poisoned(dtype, {rows, columns});
      Twin sample = words(samples), position = words(positions);
      Twin key = words<std::int64_t>({0x123456789abcdef});
      auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side) {
        const RandomRows rows_of{reinterpret_cast<const std::uint64_t*>((key.*side).view().data),
                                 (sample.*side).as<std::int32_t>(),
                                 (position.*side).as<std::int32_t>(), 77};
        kernels.router.jitter(stream, {x.*side, y.*side, 0.2, rows_of});
      };
      run(cpu(), cpu_stream(), &Twin::exact);
      run(cuda(), cuda_stream(), &Twin::device);
      EXPECT_LT(error(y), tolerance(dtype));
    }
  }
}

TEST_F(CudaMoe, SinkhornBalancesAsOnTheCpu) {
  for (std::int64_t experts : {2, 8, 60, 384, 2000}) {
    for (std::int64_t tokens : {0, 1, 500}) {
      SCOPED_TRACE(concat(experts, " experts ", tokens, " tokens"));
      Twin logits = random(Dtype::kF32, {tokens, experts}, 2);
      Twin bias = poisoned(Dtype::kF32, {experts});
      cpu().router.sinkhorn(cpu_stream(), {logits.exact, bias.exact});
      cuda().router.sinkhorn(cuda_stream(), {logits.device, bias.device});
      // One Sinkhorn iteration more or less changes it by the tolerance.
      EXPECT_LT(error(bias), 1e-3);
    }
  }
}

TEST_F(CudaMoe, EqualScoresGoToTheLowerExpert) {
  const std::int64_t experts = 70;
  Twin logits = twin(Dtype::kF32, {2, experts}, std::vector<double>(2 * experts, 0.5));
  Twin chosen = integers({2, 40}), probs = poisoned(Dtype::kF32, {2, 40});
  RoutingRule rule{.topk = 40};
  cuda().router.route(cuda_stream(), {logits.device, {}, chosen.device, probs.device, rule});
  std::vector<std::int32_t> got = fetched(chosen.device);
  for (std::int32_t i = 0; i < 80; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], i % 40);
}

// Several tiles of the sort; all tokens to few experts; equal probabilities.
TEST_F(CudaMoe, FullExpertsDropWhatTheyDropOnTheCpu) {
  for (std::int64_t tokens : {0, 1, 9, 3000}) {
    for (std::int64_t experts : {4, 300}) {
      for (std::int64_t capacity : {1, 5, 700}) {
        for (bool by_probability : {true, false}) {
          SCOPED_TRACE(concat(tokens, " tokens, ", experts, " experts, capacity ", capacity,
                              by_probability ? ", by probability" : ", by position"));
          const std::int64_t topk = 3;
          Twin chosen = choices(tokens, experts, topk), kept = integers({tokens, topk});
          std::vector<double> numbers;
          std::vector<std::int32_t> places;
          for (std::int64_t t = 0; t < tokens; ++t) {
            places.push_back(static_cast<std::int32_t>(t % 700));
            for (std::int64_t j = 0; j < topk; ++j) {
              numbers.push_back(static_cast<double>((t * 7 + j) % 50) / 50);
            }
          }
          places.push_back(0);
          Twin probs = twin(Dtype::kF32, {tokens, topk}, numbers), positions = words(places);
          Twin dropped = poisoned(Dtype::kF32, {1});
          auto args = [&](Tensor Twin::*side) {
            LimitArgs out{.experts = chosen.*side, .kept = kept.*side, .dropped = dropped.*side};
            if (by_probability) out.probs = probs.*side;
            out.positions = (positions.*side).as<std::int32_t>();
            out.expert_count = experts;
            out.capacity = capacity;
            return out;
          };
          cpu().router.limit(cpu_stream(), args(&Twin::exact));
          cuda().router.limit(cuda_stream(), args(&Twin::device));
          EXPECT_EQ(fetched(kept.device), host(kept.exact));
          EXPECT_EQ(error(dropped), 0);
        }
      }
    }
  }
}

TEST_F(CudaMoe, TokensGoToTheRanksThatTheyGoToOnTheCpu) {
  for (std::int64_t tokens : {0, 1, 77, 5000}) {
    for (std::int64_t experts : {8, 61}) {
      for (auto [etp, ep] : {std::pair{1, 1}, {1, 8}, {2, 3}, {3, 7}}) {
        SCOPED_TRACE(concat(tokens, " tokens, ", experts, " experts, etp ", etp, ", ep ", ep));
        const std::int64_t topk = 4;
        Twin chosen = choices(tokens, experts, topk), members = integers({tokens, topk * etp});
        Twin counts = integers({etp * ep, 2}), kept = integers({tokens, topk});
        Twin dropped = poisoned(Dtype::kF32, {1});
        // Some choices are dropped by capacity.
        std::vector<std::int32_t> places(static_cast<std::size_t>(tokens + 1));
        Twin positions = words(places);
        auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side) {
          LimitArgs limit{.experts = chosen.*side, .kept = kept.*side, .dropped = dropped.*side};
          limit.positions = (positions.*side).as<std::int32_t>();
          limit.expert_count = experts;
          limit.capacity = 30;
          kernels.router.limit(stream, limit);
          kernels.moe.dispatch(stream, {.experts = kept.*side,
                                        .members = members.*side,
                                        .counts = counts.*side,
                                        .expert_count = experts,
                                        .etp = etp});
        };
        run(cpu(), cpu_stream(), &Twin::exact);
        run(cuda(), cuda_stream(), &Twin::device);
        EXPECT_EQ(fetched(members.device), host(members.exact));
        EXPECT_EQ(fetched(counts.device), host(counts.exact));
      }
    }
  }
}

TEST_F(CudaMoe, RowsAreSortedGatheredAndSummedAsOnTheCpu) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t tokens : {0, 1, 5, 32, 777}) {
      for (std::int64_t columns : {1, 24, 1030}) {
        SCOPED_TRACE(concat(name_of(dtype), " ", tokens, " x ", columns));
        // Experts from 3 on are on another rank, or all 12 are local.
        for (std::int64_t local : {12, 3}) {
          const std::int64_t topk = 4, slots = tokens * topk;
          Twin chosen = choices(tokens, 12, topk);
          Twin order = integers({slots}), place = integers({slots}),
               offsets = integers({local + 1});
          auto sort = [&](Tensor Twin::*side) {
            return SortRowsArgs{chosen.*side, 12 - local, order.*side, place.*side, offsets.*side};
          };
          cpu().moe.sort_rows(cpu_stream(), sort(&Twin::exact));
          cuda().moe.sort_rows(cuda_stream(), sort(&Twin::device));
          EXPECT_EQ(fetched(order.device), host(order.exact));
          EXPECT_EQ(fetched(place.device), host(place.exact));
          EXPECT_EQ(fetched(offsets.device), host(offsets.exact));

          Twin x = random(dtype, {tokens, columns}), rows = poisoned(dtype, {slots, columns});
          Twin y = poisoned(dtype, {tokens, columns}), probs = random(Dtype::kF32, {tokens, topk});
          Twin weighted = poisoned(dtype, {slots, columns}), dx = poisoned(dtype, {slots, columns});
          Twin dprobs = poisoned(Dtype::kF32, {tokens, topk}), gathered = integers({slots, topk});
          auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side) {
            const auto* at = (order.*side).as<std::int32_t>();
            const auto* to = (place.*side).as<std::int32_t>();
            kernels.moe.permute_rows(
                stream, {.x = x.*side, .rows = rows.*side, .order = at, .place = to, .topk = topk});
            kernels.moe.permute_rows(stream, {.x = chosen.*side,
                                              .rows = gathered.*side,
                                              .order = at,
                                              .place = to,
                                              .topk = topk});
            kernels.moe.unpermute_rows(stream, {rows.*side, y.*side, to, topk});
            kernels.moe.scale_rows(stream, {rows.*side, weighted.*side, probs.*side, at});
            kernels.moe.scale_rows_backward(stream, {.dy = weighted.*side,
                                                     .x = rows.*side,
                                                     .probs = probs.*side,
                                                     .dx = dx.*side,
                                                     .dprobs = dprobs.*side,
                                                     .order = at,
                                                     .place = to});
          };
          run(cpu(), cpu_stream(), &Twin::exact);
          run(cuda(), cuda_stream(), &Twin::device);
          EXPECT_EQ(fetched(gathered.device), host(gathered.exact));
          for (const Twin& result : {rows, y, weighted, dx, dprobs}) {
            EXPECT_LT(error(result), 2 * tolerance(dtype));
          }
        }
      }
    }
  }
}

TEST_F(CudaMoe, RowsFitIntoFixedPlacesAsOnTheCpu) {
  for (std::int64_t tokens : {0, 1, 5, 777, 3000}) {
    for (std::int64_t experts : {1, 2, 12, 300}) {
      const std::int64_t topk = std::min<std::int64_t>(experts, 4), slots = tokens * topk;
      Twin chosen = choices(tokens, experts, topk);
      // The first half of the experts is on another rank.
      const std::int64_t first = experts / 2, count = experts - first;
      const std::int64_t even = std::max<std::int64_t>(slots / experts, 1);
      for (std::int64_t block : {std::int64_t{0}, even, 3 * even + 1}) {
        for (std::int64_t room : {std::int64_t{1}, slots / 3 + 1, slots + 5}) {
          SCOPED_TRACE(concat(tokens, " tokens, ", experts, " experts, ", block, ", ", room));
          Twin order = integers({slots}), place = integers({slots}),
               offsets = integers({count + 1});
          Twin fitted = integers({block > 0 ? count * block : room});
          Twin gathered = integers({fitted.exact.numel(), topk});
          Twin lost = words<double>({2});
          auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side) {
            kernels.moe.sort_rows(stream, {.experts = chosen.*side,
                                           .first_expert = first,
                                           .order = order.*side,
                                           .place = place.*side,
                                           .offsets = offsets.*side});
            kernels.moe.fit_rows(stream, {.order = order.*side,
                                          .place = place.*side,
                                          .offsets = offsets.*side,
                                          .fitted = fitted.*side,
                                          .block = block,
                                          .lost = (lost.*side).as<double>()});
            kernels.moe.permute_rows(stream, {.x = chosen.*side,
                                              .rows = gathered.*side,
                                              .order = (fitted.*side).as<std::int32_t>(),
                                              .place = (place.*side).as<std::int32_t>(),
                                              .topk = topk});
          };
          run(cpu(), cpu_stream(), &Twin::exact);
          run(cuda(), cuda_stream(), &Twin::device);
          EXPECT_EQ(fetched(fitted.device), host(fitted.exact));
          EXPECT_EQ(fetched(gathered.device), host(gathered.exact));
          EXPECT_EQ(fetched(place.device), host(place.exact));
          EXPECT_EQ(fetched(offsets.device), host(offsets.exact));
          double found = 0;
          cuda().device.fetch(cuda_stream(), lost.device, &found).wait();
          EXPECT_EQ(found, *lost.exact.as<double>());
          if (block > 0) break;
        }
      }
    }
  }
}

TEST_F(CudaMoe, ChoicesAreSpreadAndPickedAsOnTheCpu) {
  for (Dtype dtype : kModelDtypes) {
    Twin chosen = choices(45, 37, 5), probs = random(Dtype::kF32, {45, 5});
    Twin dense = poisoned(dtype, {45, 37}), picked = poisoned(Dtype::kF32, {45, 5});
    auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side) {
      kernels.router.spread(stream, {probs.*side, chosen.*side, dense.*side});
      kernels.router.pick(stream, {picked.*side, chosen.*side, dense.*side});
    };
    run(cpu(), cpu_stream(), &Twin::exact);
    run(cuda(), cuda_stream(), &Twin::device);
    EXPECT_LT(error(dense), tolerance(dtype));
    EXPECT_LT(error(picked), tolerance(dtype));
  }
}

TEST_F(CudaMoe, SignFollowsTheGradient) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    Twin main = random(Dtype::kF32, {300}), grad = random(Dtype::kF32, {300});
    Twin values = poisoned(dtype, {300});
    StepState state;
    Tensor step(device_arena(), Dtype::kU8, {sizeof(StepState)}, "test");
    cuda().device.upload(cuda_stream(), &state, step);
    cpu().optim.sign(cpu_stream(), {main.exact, grad.exact, values.exact, &state, 0.01});
    cuda().optim.sign(cuda_stream(), {main.device, grad.device, values.device,
                                      static_cast<const StepState*>(step.view().data), 0.01});
    EXPECT_LT(error(main), 1e-6);
    EXPECT_LT(error(values), tolerance(dtype));
  }
}

}  // namespace
}  // namespace bev::cuda_test
