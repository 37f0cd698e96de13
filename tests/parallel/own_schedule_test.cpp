// Custom pipeline schedules of an application.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_kernels.h"
#include "data/batch.h"
#include "parallel/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/layouts.h"
#include "verify/layout_check.h"

namespace bev::test {
namespace {

// The action lists of 1F1B after a change.
template <class Change>
class Changed final : public ScheduleMaker {
 public:
  explicit Changed(Change change) : change_(change) {}
  std::vector<Schedule> make(const PipelineShape& shape,
                             std::int64_t micro_batches) const override {
    std::vector<Schedule> lists = make_schedules(shape, micro_batches);
    change_(lists);
    return lists;
  }

 private:
  Change change_;
};

double loss_with(const ScheduleMaker* schedules) {
  double loss = 0;
  run_thread_ranks(2, {30.0}, [&](World& world) {
    EngineOptions options;
    options.model = tiny_llama();
    options.parallel.pipeline_model_parallel_size = 2;
    options.parallel.data_parallel_size = 1;
    options.schedules = schedules;
    Engine engine(world, cpu_kernels(), options);
    auto batches = rank_micro_batches(engine.model().ctx(),
                                      random_samples(options.model.vocab_size, 4, 16, 5), 1);
    engine.train_step(batches, {.iteration = 1, .lr = 1e-2});
    StepResult result = engine.train_step(batches, {.iteration = 2, .lr = 1e-2});
    if (world.rank() == 0) loss = result.loss;
  });
  return loss;
}

TEST(OwnSchedule, AnyOrderThatIsRightGivesTheSameAnswer) {
  // All backwards after all forwards.
  Changed late([](std::vector<Schedule>& lists) {
    for (Schedule& list : lists) {
      std::stable_partition(list.begin(), list.end(), [](const Action& action) {
        return action.kind == ActionKind::kReceiveForward || action.kind == ActionKind::kForward ||
               action.kind == ActionKind::kSendForward;
      });
    }
  });
  EXPECT_EQ(loss_with(&late), loss_with(nullptr));
}

TEST(OwnSchedule, AWrongOneIsRefusedBeforeItRuns) {
  auto expect_refused = [](auto change, const char* reason) {
    Changed wrong(change);
    expect_error(ErrorKind::kConfig, {"the schedule for 4 micro-batches", reason},
                 [&] { loss_with(&wrong); });
  };
  expect_refused([](std::vector<Schedule>& lists) { lists.pop_back(); }, "1 schedules for 2 ranks");
  expect_refused([](std::vector<Schedule>& lists) { lists[1].pop_back(); }, "send backward");
  expect_refused([](std::vector<Schedule>& lists) { lists[0][0].micro_batch = 9; },
                 "no micro-batch 9");
  expect_refused([](std::vector<Schedule>& lists) { lists[0].push_back(lists[0].front()); },
                 "forward");
  // The first rank waits for the gradient of an output that it has not sent.
  expect_refused(
      [](std::vector<Schedule>& lists) {
        auto receive = std::ranges::find(lists[0], ActionKind::kReceiveBackward, &Action::kind);
        std::rotate(lists[0].begin(), receive, receive + 1);
      },
      "before");
}

}  // namespace
}  // namespace bev::test
