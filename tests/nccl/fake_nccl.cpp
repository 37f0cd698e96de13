// NCCL between threads of this process, for f32 and bytes. As with the real one, the hosts of a
// communicator wait for each other when it is made, in its first message and at its end; here they
// also do in collectives.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/comm/nccl_communicator.h"
#include "base/error.h"

namespace bev {

namespace {

// What the ranks of a communicator share.
class Party {
 public:
  explicit Party(int size) : size_(size), brought_(static_cast<std::size_t>(size)) {}

  void meet() {
    std::unique_lock lock(mutex_);
    std::int64_t round = round_;
    if (++present_ == size_) {
      present_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
  }
  // What all bring, by rank.
  std::vector<std::string> gather(int rank, std::string mine) {
    {
      std::lock_guard lock(mutex_);
      brought_[static_cast<std::size_t>(rank)] = std::move(mine);
    }
    meet();
    std::vector<std::string> all = brought_;
    meet();
    return all;
  }
  void send(int from, int to, std::string message) {
    std::lock_guard lock(mutex_);
    mail_[{from, to}].push_back(std::move(message));
    changed_.notify_all();
  }
  std::string receive(int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<std::string>& box = mail_[{from, to}];
    changed_.wait(lock, [&] { return !box.empty(); });
    std::string message = std::move(box.front());
    box.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int size_, present_ = 0;
  std::int64_t round_ = 0;
  std::vector<std::string> brought_;
  std::map<std::pair<int, int>, std::deque<std::string>> mail_;
};

// Between group_start and group_end the calls of a thread are deferred; sends do not wait for
// receives.
class Calls {
 public:
  void start() {
    std::lock_guard lock(mutex_);
    threads_[std::this_thread::get_id()];
  }
  void end() {
    Thread mine;
    {
      std::lock_guard lock(mutex_);
      mine = std::move(threads_.extract(std::this_thread::get_id()).mapped());
    }
    for (const auto& call : mine.sends) call();
    for (const auto& call : mine.others) call();
  }
  void run(bool sends, std::function<void()> call) {
    {
      std::lock_guard lock(mutex_);
      auto found = threads_.find(std::this_thread::get_id());
      if (found != threads_.end()) {
        (sends ? found->second.sends : found->second.others).push_back(std::move(call));
        return;
      }
    }
    call();
  }

 private:
  struct Thread {
    std::vector<std::function<void()>> sends, others;
  };
  std::mutex mutex_;
  std::map<std::thread::id, Thread> threads_;
};

struct Process {
  std::mutex mutex;
  int ids = 0;
  std::map<int, std::shared_ptr<Party>> parties;
  Calls calls;
};
Process& process() {
  static auto* const only = new Process;
  return *only;
}

std::size_t bytes_of(std::size_t count, int dtype) {
  return count * (dtype == nccl_dtype(Dtype::kF32) ? sizeof(float) : 1);
}
std::string bytes_at(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}
void put(const std::string& bytes, void* to) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

// Sums floats in rank order.
std::string reduced(const std::vector<std::string>& all, int reduction) {
  std::string result = all.front();
  auto* to = reinterpret_cast<float*>(result.data());
  bool sum = reduction == nccl_reduction(Reduction::kSum);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto* from = reinterpret_cast<const float*>(all[rank].data());
    for (std::size_t i = 0; i < result.size() / sizeof(float); ++i) {
      to[i] = sum ? to[i] + from[i] : std::max(to[i], from[i]);
    }
  }
  return result;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Party> party;
  int rank = 0, size = 0;
  bool connected = false;

  std::vector<std::string> gather(const void* in, std::size_t count, int dtype) const {
    return party->gather(rank, bytes_at(in, bytes_of(count, dtype)));
  }
  // Only for a pair: a larger group's first messages are all sent at once.
  void connect() {
    if (!connected && size == 2) party->meet();
    connected = true;
  }
};

namespace {

int make_id(NcclId* id) {
  std::lock_guard lock(process().mutex);
  int number = ++process().ids;
  std::memcpy(id->bytes, &number, sizeof(number));
  return 0;
}

int make_comm(NcclComm* comm, int size, NcclId id, int rank) {
  int number = 0;
  std::memcpy(&number, id.bytes, sizeof(number));
  std::shared_ptr<Party> party;
  {
    std::lock_guard lock(process().mutex);
    std::shared_ptr<Party>& place = process().parties[number];
    if (!place) place = std::make_shared<Party>(size);
    party = place;
  }
  *comm = new ncclComm{party, rank, size};
  party->meet();
  return 0;
}

int run(bool sends, std::function<void()> call) {
  process().calls.run(sends, std::move(call));
  return 0;
}

int destroy(NcclComm comm) {
  comm->party->meet();
  delete comm;
  return 0;
}

int abort(NcclComm comm) {
  delete comm;
  return 0;
}

int all_reduce(const void* in, void* out, std::size_t count, int dtype, int reduction,
               NcclComm comm, cudaStream_t) {
  return run(false, [=] { put(reduced(comm->gather(in, count, dtype), reduction), out); });
}

int reduce(const void* in, void* out, std::size_t count, int dtype, int reduction, int root,
           NcclComm comm, cudaStream_t) {
  return run(false, [=] {
    std::string result = reduced(comm->gather(in, count, dtype), reduction);
    if (comm->rank == root) put(result, out);
  });
}

int broadcast(const void* in, void* out, std::size_t count, int dtype, int root, NcclComm comm,
              cudaStream_t) {
  return run(false,
             [=] { put(comm->gather(in, count, dtype)[static_cast<std::size_t>(root)], out); });
}

int all_gather(const void* in, void* out, std::size_t count, int dtype, NcclComm comm,
               cudaStream_t) {
  return run(false, [=] {
    std::string whole;
    for (const std::string& part : comm->gather(in, count, dtype)) whole += part;
    put(whole, out);
  });
}

int reduce_scatter(const void* in, void* out, std::size_t count, int dtype, int reduction,
                   NcclComm comm, cudaStream_t) {
  return run(false, [=] {
    std::size_t part = bytes_of(count, dtype), ranks = static_cast<std::size_t>(comm->size);
    std::string whole = reduced(comm->gather(in, count * ranks, dtype), reduction);
    put(whole.substr(part * static_cast<std::size_t>(comm->rank), part), out);
  });
}

int send(const void* in, std::size_t count, int dtype, int to, NcclComm comm, cudaStream_t) {
  return run(true, [=] {
    comm->connect();
    comm->party->send(comm->rank, to, bytes_at(in, bytes_of(count, dtype)));
  });
}

int receive(void* out, std::size_t count, int dtype, int from, NcclComm comm, cudaStream_t) {
  return run(false, [=] {
    comm->connect();
    std::string message = comm->party->receive(from, comm->rank);
    BEV_CHECK(message.size() == bytes_of(count, dtype), ErrorKind::kInternal,
              "a message of another size");
    put(message, out);
  });
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library{
      .get_version = nullptr,
      .get_unique_id = make_id,
      .comm_init_rank = make_comm,
      .comm_destroy = destroy,
      .comm_abort = abort,
      .group_start = [] { return process().calls.start(), 0; },
      .group_end = [] { return process().calls.end(), 0; },
      .all_reduce = all_reduce,
      .reduce = reduce,
      .broadcast = broadcast,
      .all_gather = all_gather,
      .reduce_scatter = reduce_scatter,
      .send = send,
      .receive = receive,
      .error_string = [](int) { return "none"; },
      .last_error = [](NcclComm) { return ""; },
  };
  return library;
}

}  // namespace bev
