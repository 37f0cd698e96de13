#include "comm/process/process_world.h"

#include <algorithm>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "comm/process/message_group.h"

namespace bev {

namespace {

class ProcessWorld : public World {
 public:
  ProcessWorld(int rank, Mailroom& room) : rank_(rank), room_(room) {
    room_.set_activity(rank_, &activity());
  }
  ~ProcessWorld() override { room_.set_activity(rank_, nullptr); }
  int rank() const override { return rank_; }
  int size() const override { return room_.world_size(); }
  bool aborted() const override { return room_.aborted(); }

  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override {
    auto me = std::find(members.begin(), members.end(), rank_);
    BEV_CHECK(me != members.end(), ErrorKind::kInternal, "rank ", rank_,
              " makes a group without itself");
    std::uint32_t number = groups_++;
    if (members.size() == 1) return make_single_group(std::move(name), rank_);
    auto index = static_cast<int>(me - members.begin());
    return std::make_unique<MessageGroup>(std::move(name), index, std::move(members), number,
                                          room_);
  }

 private:
  int rank_;
  Mailroom& room_;
  std::uint32_t groups_ = 0;
};

void run_rank(int rank, Mailroom& room, FunctionRef<void(World&)> body) {
  auto fail = [&](ErrorKind kind, const std::string& message, const std::string& where = "") {
    room.fail({rank, kind, concat("rank ", rank, ": ", message), where, true});
  };
  try {
    ProcessWorld world(rank, room);
    body(world);
  } catch (const Error& error) {
    fail(error.kind(), error.what(), error.where());
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::kDevice, "out of memory");
  } catch (const std::exception& error) {
    fail(ErrorKind::kDevice, concat("unexpected: ", error.what()));
  }
  room.end(rank);
}

}  // namespace

void run_process_ranks(Link& link, const ProcessWorldOptions& options,
                       FunctionRef<void(World&)> body) {
  Mailroom room(link, options.ranks, options.timeout_seconds, options.settings);
  link.open(room);
  room.greet();
  std::vector<std::thread> threads;
  try {
    for (int i = 0; i < options.ranks; ++i) {
      int rank = room.first_rank() + i;
      threads.emplace_back([&, rank] { run_rank(rank, room, body); });
    }
  } catch (const std::system_error& error) {
    room.fail({room.first_rank(), ErrorKind::kDevice,
               concat("only ", threads.size(), " of ", options.ranks,
                      " ranks could be started as threads: ", error.what()),
               "", true});
  }
  // The main thread only watches: a rank that computes or hangs cannot keep the run from ending.
  RankFailure failure;
  bool well = room.wait_for_end(failure);
  if (!well && options.failed != nullptr) options.failed(failure, link);
  for (std::thread& thread : threads) thread.join();
  link.close();
  if (!well) throw Error(failure.kind, failure.message);
}

}  // namespace bev
