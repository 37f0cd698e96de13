// Fault injection at every call of every rank of a small run: it must end and name the right rank.
#include "comm/fault.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <thread>

#include "base/clock.h"
#include "comm/mesh.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

View view_of(std::vector<float>& data) {
  return {data.data(), Dtype::kF32, {static_cast<std::int64_t>(data.size())}};
}

TEST(ParseFault, ReadsThePartsInAnyOrder) {
  Fault fault = parse_fault("rank=1,call=20,kind=stall");
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.call, 20);
  EXPECT_EQ(fault.kind, Fault::Kind::kStall);
  EXPECT_EQ(parse_fault("kind=kill, call=1, rank=0").kind, Fault::Kind::kKill);
  EXPECT_EQ(parse_fault("kind=throw,rank=3,call=7").kind, Fault::Kind::kThrow);
}

TEST(ParseFault, NamesWhatIsWrong) {
  auto wrong = [](const char* text, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kConfig, parts, [&] { parse_fault(text); });
  };
  wrong("", {"inject-fault", "rank=R,call=N,kind="});
  wrong("rank=1,call=2", {"not complete", "kind=throw|stall|kill"});
  wrong("rank=1,call=2,kind", {"'kind' has no '='"});
  wrong("rank=1,call=2,kind=hang", {"kind 'hang'", "throw, stall, kill"});
  wrong("rank=-1,call=2,kind=kill", {"rank '-1'", "whole number from 0"});
  wrong("rank=1,call=0,kind=kill", {"call '0'", "whole number from 1"});
  wrong("rank=1x,call=1,kind=kill", {"rank '1x'"});
  wrong("rank=99999999999,call=1,kind=kill", {"rank '99999999999'"});
  wrong("rank=1,call=2,kind=kill,step=3", {"unknown 'step'"});
  wrong("rank=1,rank=2,call=2,kind=kill", {"rank is given twice"});
}

// Communication of a small training run: tp all-reduces in the layers of two micro-batches,
// messages between the stages, gradients summed over dp while other operations are in flight.
void train(World& world, int steps) {
  Mesh mesh(world, {.tp = 2, .dp = 2, .pp = 2});
  Group &tp = mesh.tp(), &pp = mesh.pp(), &dp = mesh.dp();
  std::vector<float> hidden(6, 1.0f), gradients(8, 1.0f), part(4), norm(1, 1.0f);
  for (int step = 0; step < steps; ++step) {
    mesh.activity().set_step(step);
    mesh.world().barrier("step");
    for (int i = 0; i < 2; ++i) {
      mesh.activity().set_action("forward", i);
      if (pp.rank() == 1) pp.receive(view_of(hidden), 0, 0, "hidden states").wait();
      mesh.activity().set_op("attention", 3);
      tp.all_reduce(view_of(hidden), Reduction::kSum, "tp output").wait();
      if (pp.rank() == 0) pp.send(view_of(hidden), 1, 0, "hidden states").wait();
    }
    Work sum = dp.reduce_scatter(view_of(gradients), view_of(part), "gradients");
    Work worst = mesh.world().all_reduce(view_of(norm), Reduction::kMax, "norm");
    worst.wait();
    sum.wait();
    dp.all_gather(view_of(part), view_of(gradients), "weights").wait();
  }
}

// Number of calls of each rank without a fault.
std::vector<std::int64_t> count_calls(int steps) {
  std::vector<std::int64_t> calls(8);
  run_thread_ranks(8, {20.0}, [&](World& world) {
    FaultWorld counted(world, {-1, 1, Fault::Kind::kThrow});
    train(counted, steps);
    calls[static_cast<std::size_t>(world.rank())] = counted.calls();
  });
  return calls;
}

void run_with(const Fault& fault, int steps, double timeout) {
  run_thread_ranks(8, {timeout}, [&](World& world) {
    FaultWorld faulty(world, fault);
    train(faulty, steps);
  });
}

TEST(Fault, CallsAreCountedFromOneOnEveryRank) {
  // Per step: a barrier, two sums and two messages, and three collectives for the gradients.
  EXPECT_EQ(count_calls(2), std::vector<std::int64_t>(8, 2 * (1 + 4 + 3)));
}

TEST(Fault, AThrowAtAnyCallOfAnyRankEndsTheRunWithThatRank) {
  std::vector<std::int64_t> calls = count_calls(2);
  for (int rank = 0; rank < 8; ++rank) {
    for (std::int64_t call = 1; call <= calls[static_cast<std::size_t>(rank)]; ++call) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", call " << call);
      expect_error(ErrorKind::kComm,
                   {concat("rank ", rank, ": injected fault at call ", call, ", ")}, [&] {
                     run_with({rank, call, Fault::Kind::kThrow}, 2, 20);
                   });
    }
  }
}

// Only the stalled rank is blamed, whichever rank notices first.
void expect_stall_blamed(int rank, std::int64_t call, double timeout) {
  std::string text;
  try {
    run_with({rank, call, Fault::Kind::kStall}, 1, timeout);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kComm);
    text = error.what();
  }
  std::string first = text.substr(0, text.find('\n')), last = text.substr(text.rfind('\n') + 1);
  std::string where = concat("rank ", rank, ", call ", call, ": ", text);
  // On a busy machine the wait is a little longer.
  constexpr std::string_view kWaited = " has waited ";
  std::size_t waited = first.find(kWaited);
  ASSERT_NE(waited, std::string::npos) << where;
  EXPECT_GE(std::stod(first.substr(waited + kWaited.size())), timeout) << where;
  EXPECT_EQ(last.rfind(concat("rank ", rank, " never came: it "), 0), 0u) << where;
  EXPECT_EQ(last.find(';'), std::string::npos) << where;
}

// Several runs in parallel, since each takes a timeout.
TEST(Fault, AStallAtAnyCallOfAnyRankEndsTheRunWithThatRank) {
  constexpr double kTimeout = 0.5, kSlack = 20;
  std::vector<std::int64_t> calls = count_calls(1);
  for (int first = 0; first < 8; first += 4) {
    double start = monotonic_seconds();
    std::vector<std::thread> runs;
    for (int rank = first; rank < first + 4; ++rank) {
      for (std::int64_t call = 1; call <= calls[static_cast<std::size_t>(rank)]; ++call) {
        runs.emplace_back([=] { expect_stall_blamed(rank, call, kTimeout); });
      }
    }
    for (std::thread& run : runs) run.join();
    EXPECT_LT(monotonic_seconds() - start, kTimeout + kSlack);
  }
}

TEST(Fault, AStallIsReportedWithWhatTheRankDid) {
  expect_error(ErrorKind::kComm,
               {"rank 3 never came: it is in step 0, forward of micro-batch 1, layer 3, op "
                "attention",
                "(group dp x cp, ", "(group world, [1] f32), in step 0"},
               [] {
                 run_thread_ranks(4, {0.2}, [](World& inner) {
                   FaultWorld world(inner, {3, 2, Fault::Kind::kStall});
                   Mesh mesh(world, {.dp = 4});
                   std::vector<float> data(1);
                   mesh.activity().set_step(0);
                   mesh.activity().set_action("forward", 1);
                   mesh.activity().set_op("attention", 3);
                   mesh.world().barrier("start");
                   Group& group = mesh.at().dp < 1 ? mesh.world() : mesh.grads();
                   group.all_reduce(view_of(data), Reduction::kSum, "x").wait();
                 });
               });
}

TEST(FaultDeathTest, AKillEndsTheProcess) {
  EXPECT_EXIT(run_thread_ranks(1, {20.0},
                               [](World& world) {
                                 FaultWorld faulty(world, {0, 2, Fault::Kind::kKill});
                                 auto group = faulty.make_group("group", {0});
                                 group->barrier("first");
                                 group->barrier("second");
                               }),
              testing::KilledBySignal(SIGKILL), "");
}

TEST(Fault, OtherRanksAndCallsPassThroughTheDecoratedWorld) {
  run_thread_ranks(2, {20.0}, [](World& world) {
    FaultWorld faulty(world, {0, 100, Fault::Kind::kThrow});
    std::unique_ptr<Group> group = faulty.make_group("pair", {1, 0});
    EXPECT_EQ(group->name(), "pair");
    EXPECT_EQ(group->rank(), 1 - world.rank());
    EXPECT_EQ(group->members()[0], 1);
    EXPECT_EQ(faulty.size(), 2);
    EXPECT_EQ(&faulty.activity(), &world.activity());
    EXPECT_FALSE(faulty.aborted());
    std::vector<float> mine(1, static_cast<float>(world.rank())), both(2), swapped(2);
    std::vector<std::int64_t> one = {1, 1};
    group->all_gather(view_of(mine), view_of(both), "gather").wait();
    EXPECT_EQ(both, (std::vector<float>{1, 0}));
    group->all_to_all(view_of(both), one, view_of(swapped), one, "exchange").wait();
    EXPECT_EQ(swapped, std::vector<float>(2, both[static_cast<std::size_t>(group->rank())]));
    group->broadcast(view_of(both), 1, "data").wait();
    EXPECT_EQ(faulty.calls(), 3);
  });
}

}  // namespace
}  // namespace bev
