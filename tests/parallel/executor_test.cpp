// When the executor posts messages and waits for them, on a transport that only logs.
#include "parallel/executor.h"

#include <gtest/gtest.h>

#include "data/batch.h"
#include "parallel/engine.h"
#include "plan/phantom.h"
#include "tests/support/layouts.h"
#include "verify/layout_check.h"

namespace bev::test {
namespace {

using Record = std::vector<std::string>;

class Recorded final : public Work::Pending {
 public:
  Recorded(Record& record, std::string done) : record_(record), done_(std::move(done)) {}
  void wait() override { record_.push_back(done_); }

 private:
  Record& record_;
  std::string done_;
};

// Logs messages; everything else passes through.
class RecordingGroup final : public Group {
 public:
  RecordingGroup(Record& record, std::string name, int rank, std::vector<int> members)
      : Group(std::move(name), rank, std::move(members)), record_(record) {}

  Work all_reduce(const View&, Reduction, std::string_view) override { return {}; }
  Work all_gather(const View&, const View&, std::string_view) override { return {}; }
  Work reduce_scatter(const View&, const View&, std::string_view) override { return {}; }
  Work broadcast(const View&, int, std::string_view) override { return {}; }
  Work all_to_all(const View&, std::span<const std::int64_t>, const View&,
                  std::span<const std::int64_t>, std::string_view) override {
    return {};
  }
  Work send(const View&, int, int channel, std::string_view) override {
    return post(concat("send ", channel));
  }
  Work receive(const View&, int, int channel, std::string_view) override {
    return post(concat("receive ", channel));
  }
  void barrier(std::string_view) override {}

 private:
  Work post(const std::string& what) {
    record_.push_back(what);
    return Work(std::make_unique<Recorded>(record_, what + " done"));
  }
  Record& record_;
};

class RecordingWorld final : public World {
 public:
  RecordingWorld(int rank, int size, Record& record) : rank_(rank), size_(size), record_(record) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override {
    auto at = std::find(members.begin(), members.end(), rank_) - members.begin();
    return std::make_unique<RecordingGroup>(record_, std::move(name), static_cast<int>(at),
                                            std::move(members));
  }

 private:
  int rank_, size_;
  Record& record_;
};

// Forwards of three micro-batches on one rank of a three-stage pipeline.
Record forwards(int rank, bool overlap) {
  struct Sink : OutputSink {
    explicit Sink(Record& to) : record(to) {}
    void on_outputs(std::int64_t micro_batch, std::span<const Var>) override {
      record.push_back(concat("computed ", micro_batch));
    }
    Record& record;
  };
  Record record;
  RecordingWorld world(rank, 3, record);
  EngineOptions options;
  options.model = tiny_gpt();
  options.parallel.pipeline_model_parallel_size = 3;
  options.parallel.overlap_p2p_communication = overlap;
  options.gradients = options.optimizer = false;
  Engine engine(world, phantom_kernels(), options);
  Sink sink(record);
  engine.model().forward_outputs(
      rank_micro_batches(engine.model().ctx(), random_samples(61, 3, 5, 1), 1), sink);
  return record;
}

// Messages of boundary 1 (from stage 1 to stage 2) are on channel 2.
TEST(Executor, ReceivesForTheNextComputationDuringTheOneBefore) {
  EXPECT_EQ(forwards(2, true),
            (Record{"receive 2", "receive 2 done", "receive 2", "computed 0", "receive 2 done",
                    "receive 2", "computed 1", "receive 2 done", "computed 2"}));
  EXPECT_EQ(forwards(2, false),
            (Record{"receive 2", "receive 2 done", "computed 0", "receive 2", "receive 2 done",
                    "computed 1", "receive 2", "receive 2 done", "computed 2"}));
}

// A send completes during the computation that follows it.
TEST(Executor, SendsDuringTheNextComputation) {
  EXPECT_EQ(forwards(1, true), (Record{"receive 0", "receive 0 done", "receive 0", "send 2",
                                       "receive 0 done", "receive 0", "send 2 done", "send 2",
                                       "receive 0 done", "send 2 done", "send 2", "send 2 done"}));
  EXPECT_EQ(forwards(0, false),
            (Record{"send 0", "send 0 done", "send 0", "send 0 done", "send 0", "send 0 done"}));
}

}  // namespace
}  // namespace bev::test
