// Ranks as threads of one process: their worlds, start and end.
#include <algorithm>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/thread_group.h"
#include "comm/world.h"

namespace bev {

namespace {

// Rendezvous of a group's members, keyed by the member list and how often it was requested.
class MeetingPlaces {
 public:
  explicit MeetingPlaces(ThreadFabric& fabric) : fabric_(fabric) {}

  std::shared_ptr<ThreadMeeting> find(std::string name, const std::vector<int>& members,
                                      int instance) {
    std::lock_guard lock(mutex_);
    auto& place = places_[{members, instance}];
    if (!place) place = make_thread_meeting(fabric_, std::move(name), members);
    return place;
  }

 private:
  ThreadFabric& fabric_;
  std::mutex mutex_;
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<ThreadMeeting>> places_;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(int rank, ThreadFabric& fabric, MeetingPlaces& places)
      : rank_(rank), fabric_(fabric), places_(places) {
    fabric.enroll(rank, activity());
  }
  int rank() const override { return rank_; }
  int size() const override { return fabric_.size(); }
  bool aborted() const override { return fabric_.aborted(); }

  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override {
    auto me = std::find(members.begin(), members.end(), rank_);
    BEV_CHECK(me != members.end(), ErrorKind::kInternal, "rank ", rank_,
              " makes a group without itself");
    if (members.size() == 1) return make_single_group(std::move(name), rank_);
    int instance = instances_[members]++;
    auto index = static_cast<int>(me - members.begin());
    return make_thread_group(places_.find(std::move(name), members, instance), index,
                             make_host_peer_memory());
  }

 private:
  int rank_;
  ThreadFabric& fabric_;
  MeetingPlaces& places_;
  std::map<std::vector<int>, int> instances_;
};

}  // namespace

void run_thread_ranks(int ranks, const ThreadWorldOptions& options,
                      FunctionRef<void(World&)> body) {
  ThreadFabric fabric(ranks, options.timeout_seconds);
  MeetingPlaces places(fabric);
  std::vector<std::unique_ptr<ThreadWorld>> worlds;
  for (int rank = 0; rank < ranks; ++rank) {
    worlds.push_back(std::make_unique<ThreadWorld>(rank, fabric, places));
  }
  auto run = [&](int rank) {
    try {
      body(*worlds[static_cast<std::size_t>(rank)]);
    } catch (...) {
      fabric.fail(rank, std::current_exception());
    }
    fabric.end(rank);
  };

  std::vector<std::thread> threads;
  if (ranks == 1) run(0);
  try {
    for (int rank = 0; rank < ranks && ranks > 1; ++rank) threads.emplace_back(run, rank);
  } catch (const std::system_error& error) {
    Error cause(ErrorKind::kDevice, concat("only ", threads.size(), " of ", ranks,
                                           " ranks could be started as threads: ", error.what()));
    fabric.fail(static_cast<int>(threads.size()), std::make_exception_ptr(cause));
    for (std::thread& thread : threads) thread.join();
    throw cause;
  }
  // This thread is not a rank, so it can report a rank that does not end.
  fabric.await_end();
  for (std::thread& thread : threads) thread.join();
  fabric.rethrow();
}

}  // namespace bev
