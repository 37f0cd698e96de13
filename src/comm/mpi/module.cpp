// MPI transport behind mpi_link.h. One thread makes all MPI calls: it sends what is queued,
// receives what arrives, and sleeps in between, longer while no rank of the process waits. A
// message is a header with its text, then the data in pieces within MPI's int counts.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/process/link.h"

namespace bev {

namespace {

constexpr int kHeadTag = 0, kDataTag = 1;
constexpr std::size_t kPieceBytes = std::size_t{1} << 30;

// A message and its MPI requests.
struct Transfer {
  int process = 0;
  Message message;
  std::vector<std::byte> head;  // header and text
  std::vector<MPI_Request> requests;

  bool over() {
    int flag = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE);
    return flag != 0;
  }
  // Starts a request for each piece of the data.
  template <class Start>
  void start_data(const Start& start) {
    for (std::size_t begin = 0; begin < message.data.size(); begin += kPieceBytes) {
      auto size = static_cast<int>(std::min(kPieceBytes, message.data.size() - begin));
      start(message.data.data() + begin, size, &requests.emplace_back());
    }
  }
};

class MpiLink : public Link {
 public:
  MpiLink() : mover_([this] { run(); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_; });
  }
  ~MpiLink() override { close(); }

  int process() const override { return process_; }
  int processes() const override { return processes_; }

  void open(Inbox& inbox) override {
    std::lock_guard lock(mutex_);
    inbox_ = &inbox;
    changed_.notify_all();
  }
  void send(int process, Message message) override {
    std::lock_guard lock(mutex_);
    queue_.push_back({process, std::move(message), {}, {}});
    changed_.notify_all();
  }
  void close() override {
    if (!mover_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    mover_.join();
  }
  void abandon(int exit_code, bool leads) override {
    if (!leads) std::this_thread::sleep_for(std::chrono::seconds(5));
    {
      std::lock_guard lock(mutex_);
      exit_code_ = exit_code;
      abandoned_at_ = Clock::now();
      changed_.notify_all();
    }
    mover_.join();
  }
  bool ends_others() const override { return true; }

 private:
  using Clock = std::chrono::steady_clock;

  void run() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &process_);
    MPI_Comm_size(MPI_COMM_WORLD, &processes_);
    {
      std::unique_lock lock(mutex_);
      ready_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return inbox_ != nullptr || closing_; });
    }
    int idle = 0;
    while (true) {
      bool moved = start_sends();
      moved |= end_sends();
      moved |= start_receive();
      moved |= end_receives();
      idle = moved ? 0 : idle + 1;
      if (moved) continue;
      if (ended()) break;
      rest(idle);
    }
    MPI_Finalize();
  }

  bool start_sends() {
    std::deque<Transfer> fresh;
    {
      std::lock_guard lock(mutex_);
      fresh.swap(queue_);
    }
    for (Transfer& transfer : fresh) {
      sends_.push_back(std::move(transfer));
      start_send(sends_.back());
    }
    return !fresh.empty();
  }

  static void start_send(Transfer& transfer) {
    Message& message = transfer.message;
    message.head.text_bytes = message.text.size();
    message.head.data_bytes = message.data.size();
    transfer.head.resize(sizeof(MessageHead) + message.text.size());
    std::memcpy(transfer.head.data(), &message.head, sizeof(MessageHead));
    std::memcpy(transfer.head.data() + sizeof(MessageHead), message.text.data(),
                message.text.size());
    transfer.requests.reserve(2 + message.data.size() / kPieceBytes);
    MPI_Isend(transfer.head.data(), static_cast<int>(transfer.head.size()), MPI_BYTE,
              transfer.process, kHeadTag, MPI_COMM_WORLD, &transfer.requests.emplace_back());
    transfer.start_data([&](std::byte* data, int size, MPI_Request* request) {
      MPI_Isend(data, size, MPI_BYTE, transfer.process, kDataTag, MPI_COMM_WORLD, request);
    });
  }

  bool end_sends() {
    return std::erase_if(sends_, [](Transfer& transfer) { return transfer.over(); }) > 0;
  }

  // Data of one process arrives in the order of the headers, so receives are posted in that order.
  bool start_receive() {
    int found = 0;
    MPI_Message handle;
    MPI_Status status;
    MPI_Improbe(MPI_ANY_SOURCE, kHeadTag, MPI_COMM_WORLD, &found, &handle, &status);
    if (found == 0) return false;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    std::vector<std::byte> head(static_cast<std::size_t>(size));
    MPI_Mrecv(head.data(), size, MPI_BYTE, &handle, MPI_STATUS_IGNORE);
    Transfer transfer{status.MPI_SOURCE, {}, {}, {}};
    Message& message = transfer.message;
    std::memcpy(&message.head, head.data(), sizeof(MessageHead));
    message.text.assign(reinterpret_cast<const char*>(head.data()) + sizeof(MessageHead),
                        message.head.text_bytes);
    message.data = SharedBytes(message.head.data_bytes);
    transfer.requests.reserve(1 + message.data.size() / kPieceBytes);
    transfer.start_data([&](std::byte* data, int bytes, MPI_Request* request) {
      MPI_Irecv(data, bytes, MPI_BYTE, transfer.process, kDataTag, MPI_COMM_WORLD, request);
    });
    receives_.push_back(std::move(transfer));
    return true;
  }

  bool end_receives() {
    return std::erase_if(receives_, [&](Transfer& transfer) {
             if (!transfer.over()) return false;
             inbox_->deliver(transfer.process, std::move(transfer.message));
             return true;
           }) > 0;
  }

  // True if there is nothing left to move. Receiving continues until all processes are that far.
  bool ended() {
    std::lock_guard lock(mutex_);
    bool sent = queue_.empty() && sends_.empty();
    if (exit_code_ != 0 && (sent || Clock::now() > abandoned_at_ + std::chrono::seconds(1))) {
      MPI_Abort(MPI_COMM_WORLD, exit_code_);
    }
    if (!closing_ || !sent) return false;
    if (barrier_ == MPI_REQUEST_NULL) MPI_Ibarrier(MPI_COMM_WORLD, &barrier_);
    int flag = 0;
    MPI_Test(&barrier_, &flag, MPI_STATUS_IGNORE);
    return flag != 0;
  }

  // Ranks may outnumber cores: poll for a while, then sleep briefly.
  void rest(int idle) {
    constexpr int kSpins = 100;
    bool pending = awaited() || !sends_.empty() || !receives_.empty();
    if (pending && idle < kSpins) {
      ::sched_yield();
      return;
    }
    std::unique_lock lock(mutex_);
    auto pause = pending ? std::chrono::microseconds(50) : std::chrono::microseconds(500);
    changed_.wait_for(lock, pause, [&] { return !queue_.empty() || closing_ || exit_code_ != 0; });
  }

  int process_ = 0, processes_ = 1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Transfer> queue_;
  Inbox* inbox_ = nullptr;
  bool ready_ = false, closing_ = false;
  int exit_code_ = 0;  // exit code of an abandoned run
  Clock::time_point abandoned_at_;

  // Used by the mover thread only.
  std::list<Transfer> sends_, receives_;
  MPI_Request barrier_ = MPI_REQUEST_NULL;
  std::thread mover_;
};

}  // namespace
}  // namespace bev

extern "C" __attribute__((visibility("default"))) bev::Link* bev_make_mpi_link() {
  return new bev::MpiLink();
}
