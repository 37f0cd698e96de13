#include "comm/process/tcp_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/process/sockets.h"

namespace bev {

namespace {

// A message being sent or received: header, text and data in sequence.
struct Transfer {
  Message message;
  std::size_t moved = 0;

  std::size_t size() const {
    return sizeof(MessageHead) + message.text.size() + message.data.size();
  }
  // Remaining pieces, as far as their sizes are known.
  std::vector<iovec> rest() {
    std::array<std::pair<void*, std::size_t>, 3> parts = {
        std::pair<void*, std::size_t>{&message.head, sizeof(MessageHead)},
        {message.text.data(), message.text.size()},
        {message.data.data(), message.data.size()}};
    std::vector<iovec> list;
    std::size_t skip = moved;
    for (auto [data, bytes] : parts) {
      std::size_t gone = std::min(skip, bytes);
      skip -= gone;
      if (gone < bytes) list.push_back({static_cast<char*>(data) + gone, bytes - gone});
    }
    return list;
  }
};

class TcpLink : public Link {
 public:
  // connections[i] leads to process i; the own entry is empty.
  TcpLink(int process, std::vector<Socket> connections)
      : process_(process), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (Socket& socket : connections) {
      peers_.push_back(std::make_unique<Peer>());
      if (socket.valid()) make_message_socket(socket);
      peers_.back()->socket = std::move(socket);
    }
  }
  ~TcpLink() override { stop(); }

  int process() const override { return process_; }
  int processes() const override { return static_cast<int>(peers_.size()); }

  void open(Inbox& inbox) override {
    inbox_ = &inbox;
    mover_ = std::thread([this] { move_messages(); });
  }

  void send(int process, Message message) override {
    message.head.text_bytes = message.text.size();
    message.head.data_bytes = message.data.size();
    Peer& peer = *peers_[static_cast<std::size_t>(process)];
    std::lock_guard lock(peer.mutex);
    if (peer.gone) return;
    peer.outgoing.push_back({std::move(message), 0});
    // Fast path: if the socket takes it at once, the mover thread need not wake.
    if (peer.outgoing.size() == 1) flush(peer);
    if (!peer.outgoing.empty()) wake();
  }

  void close() override {
    constexpr double kPatienceSeconds = 30;
    part(kPatienceSeconds);
    stop();
  }

  // A process that exits with unread messages resets its connections, and its last messages are
  // lost; therefore it keeps reading until the others have left too.
  void abandon(int, bool) override {
    constexpr double kPatienceSeconds = 1;
    part(kPatienceSeconds);
  }
  bool ends_others() const override { return false; }

 private:
  struct Peer {
    Socket socket;
    std::mutex mutex;  // guards outgoing and gone
    std::deque<Transfer> outgoing;
    Transfer incoming;  // used by the mover thread only
    bool gone = false;
  };

  void wake() {
    std::uint64_t one = 1;
    [[maybe_unused]] ssize_t put = ::write(wake_.descriptor(), &one, sizeof one);
  }
  void stop() {
    if (!mover_.joinable()) return;
    stopping_.store(true);
    wake();
    mover_.join();
  }
  bool all_of_peers(bool (*holds)(const Peer&)) {
    return std::ranges::all_of(peers_, [&](auto& peer) {
      std::lock_guard lock(peer->mutex);
      return !peer->socket.valid() || holds(*peer);
    });
  }
  // Sends what is queued, shuts down the write side, and waits for the others to do so.
  void part(double patience_seconds) {
    flush_all(patience_seconds);
    for (auto& peer : peers_) {
      std::lock_guard lock(peer->mutex);
      if (peer->socket.valid()) ::shutdown(peer->socket.descriptor(), SHUT_WR);
    }
    double end = monotonic_seconds() + patience_seconds;
    while (!all_of_peers([](const Peer& peer) { return peer.gone; }) && monotonic_seconds() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void flush_all(double patience_seconds) {
    double end = monotonic_seconds() + patience_seconds;
    auto empty = [](const Peer& peer) { return peer.gone || peer.outgoing.empty(); };
    while (!all_of_peers(empty) && monotonic_seconds() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Requires the peer lock. Writes as much as the socket takes.
  static void flush(Peer& peer) {
    while (!peer.outgoing.empty()) {
      Transfer& transfer = peer.outgoing.front();
      std::vector<iovec> rest = transfer.rest();
      msghdr call{};
      call.msg_iov = rest.data();
      call.msg_iovlen = rest.size();
      ssize_t put = ::sendmsg(peer.socket.descriptor(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return;  // full, or broken: the reading side notices the latter
      transfer.moved += static_cast<std::size_t>(put);
      if (transfer.moved == transfer.size()) peer.outgoing.pop_front();
    }
  }

  // Reads what is available; false at the end of the connection.
  bool read(int process, Peer& peer) {
    while (true) {
      Transfer& transfer = peer.incoming;
      std::vector<iovec> rest = transfer.rest();
      ssize_t got = ::readv(peer.socket.descriptor(), rest.data(), static_cast<int>(rest.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      if (got == 0) return false;
      bool had_head = transfer.moved >= sizeof(MessageHead);
      transfer.moved += static_cast<std::size_t>(got);
      if (!had_head && transfer.moved >= sizeof(MessageHead)) {
        transfer.message.text.resize(transfer.message.head.text_bytes);
        transfer.message.data = SharedBytes(transfer.message.head.data_bytes);
      }
      if (transfer.moved < sizeof(MessageHead) || transfer.moved < transfer.size()) continue;
      inbox_->deliver(process, std::move(transfer.message));
      transfer = {};
    }
  }

  void leave(int process, Peer& peer) {
    {
      std::lock_guard lock(peer.mutex);
      peer.gone = true;
      peer.outgoing.clear();
    }
    inbox_->lost(process);
  }

  void move_messages() {
    std::vector<pollfd> items(peers_.size() + 1);
    while (!stopping_.load()) {
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        Peer& peer = *peers_[i];
        std::lock_guard lock(peer.mutex);
        bool there = peer.socket.valid() && !peer.gone;
        short events = static_cast<short>(POLLIN | (peer.outgoing.empty() ? 0 : POLLOUT));
        items[i] = {there ? peer.socket.descriptor() : -1, events, 0};
      }
      items.back() = {wake_.descriptor(), POLLIN, 0};
      ::poll(items.data(), items.size(), -1);
      std::uint64_t count = 0;
      [[maybe_unused]] ssize_t got = ::read(wake_.descriptor(), &count, sizeof count);
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        Peer& peer = *peers_[i];
        if ((items[i].revents & POLLOUT) != 0) {
          std::lock_guard lock(peer.mutex);
          flush(peer);
        }
        bool stirs = (items[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
        if (stirs && !read(static_cast<int>(i), peer)) leave(static_cast<int>(i), peer);
      }
    }
  }

  int process_;
  Socket wake_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Inbox* inbox_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::thread mover_;
};

// First message on a connection.
struct Greeting {
  std::uint64_t magic = kMagic;
  std::int32_t process = 0, processes = 0, port = 0;
  std::int32_t head_bytes = sizeof(MessageHead);  // rejects other versions

  static constexpr std::uint64_t kMagic = 0x6e6f727461766562;  // "bevatron"
};

struct Meeting {
  const Launch& launch;
  double deadline = 0;
  std::vector<Socket> connections;

  // Accepts the next process of this run; foreign connections are closed. Returns its index, or -1
  // at the deadline.
  int accept_one(const Socket& listener, Greeting& greeting, std::string& address) {
    while (true) {
      Socket socket = accept_from(listener, deadline, address);
      if (!socket.valid() && monotonic_seconds() >= deadline) return -1;
      constexpr double kGreetingSeconds = 5;
      double end = std::min(deadline, monotonic_seconds() + kGreetingSeconds);
      bool ours = socket.valid() && read_all(socket, &greeting, sizeof greeting, end) &&
                  greeting.magic == Greeting::kMagic;
      if (!ours) continue;
      BEV_CHECK(greeting.head_bytes == static_cast<int>(sizeof(MessageHead)), ErrorKind::kComm,
                "process ", greeting.process, " at ", address, " is another version of bevatron");
      BEV_CHECK(greeting.processes == launch.processes, ErrorKind::kComm, "WORLD_SIZE: is ",
                launch.processes, " for process ", launch.process, " and ", greeting.processes,
                " for process ", greeting.process);
      bool fresh = greeting.process > launch.process && greeting.process < launch.processes &&
                   !connection(greeting.process).valid();
      BEV_CHECK(fresh, ErrorKind::kComm, "RANK: two processes say that they are process ",
                greeting.process);
      connection(greeting.process) = std::move(socket);
      return greeting.process;
    }
  }
  Socket& connection(int process) { return connections[static_cast<std::size_t>(process)]; }

  void greet(int process, const std::string& address, int port, int own_port) {
    Greeting greeting;
    greeting.process = launch.process;
    greeting.processes = launch.processes;
    greeting.port = own_port;
    connection(process) = connect_to(address, port, deadline);
    BEV_CHECK(write_all(connection(process), &greeting, sizeof greeting, deadline),
              ErrorKind::kComm, "process ", process, " at ", address, " hung up");
  }
  std::string absent() {
    std::string text;
    for (int i = launch.process + 1; i < launch.processes; ++i) {
      if (!connection(i).valid()) text += concat(text.empty() ? "" : ", ", i);
    }
    return text;
  }
};

// Key of the reply of a process 0 that does not take part.
constexpr const char* kRefusal = "refusal";

bool send_text(Meeting& meeting, int process, const std::string& text) {
  std::uint64_t size = text.size();
  return write_all(meeting.connection(process), &size, sizeof size, meeting.deadline) &&
         write_all(meeting.connection(process), text.data(), size, meeting.deadline);
}

// Process 0: collects the addresses at which the others listen, and sends them to all.
void host_meeting(Meeting& meeting) {
  const Launch& launch = meeting.launch;
  Socket listener = listen_on(launch.master_port);
  nlohmann::json places = nlohmann::json::array();
  for (int i = 0; i < launch.processes; ++i) places.push_back({"", 0});
  for (int i = 1; i < launch.processes; ++i) {
    Greeting greeting;
    std::string address;
    int process = meeting.accept_one(listener, greeting, address);
    BEV_CHECK(process >= 0, ErrorKind::kComm, "process 0 waits at ", launch.master_address,
              " port ", launch.master_port, "; not there: process ", meeting.absent());
    // A process on this machine is reached at the address of process 0.
    bool near = address.starts_with("127.") || address == "::1";
    places[static_cast<std::size_t>(process)] = {near ? "" : address, greeting.port};
  }
  std::string text = places.dump();
  for (int i = 1; i < launch.processes; ++i) {
    BEV_CHECK(send_text(meeting, i, text), ErrorKind::kComm, "process ", i, " hung up");
  }
}

// Other processes: report to process 0, then connect to those with smaller index and accept those
// with larger.
void join_meeting(Meeting& meeting) {
  const Launch& launch = meeting.launch;
  Socket listener = listen_on(0);
  meeting.greet(0, launch.master_address, launch.master_port, port_of(listener));
  std::uint64_t size = 0;
  constexpr std::uint64_t kMostBytes = 1 << 28;
  bool heard =
      read_all(meeting.connection(0), &size, sizeof size, meeting.deadline) && size < kMostBytes;
  std::string text(heard ? size : 0, '\0');
  heard = heard && read_all(meeting.connection(0), text.data(), size, meeting.deadline);
  BEV_CHECK(heard, ErrorKind::kComm, "process 0 at ", launch.master_address, " port ",
            launch.master_port, " hung up, or waits for others");
  nlohmann::json places = nlohmann::json::parse(text);
  BEV_CHECK(!places.is_object(), ErrorKind::kConfig,
            "ended by process 0: ", places.value(kRefusal, ""));
  for (int i = 1; i < launch.process; ++i) {
    const nlohmann::json& place = places[static_cast<std::size_t>(i)];
    std::string address = place[0];
    meeting.greet(i, address.empty() ? launch.master_address : address, place[1], 0);
  }
  for (int i = launch.process + 1; i < launch.processes; ++i) {
    Greeting greeting;
    std::string address;
    BEV_CHECK(meeting.accept_one(listener, greeting, address) >= 0, ErrorKind::kComm,
              "no connection from process ", meeting.absent());
  }
}

}  // namespace

namespace {
Meeting make_meeting(const Launch& launch, double timeout_seconds) {
  return {launch, monotonic_seconds() + timeout_seconds,
          std::vector<Socket>(static_cast<std::size_t>(launch.processes))};
}
}  // namespace

void refuse_tcp_link(const Launch& launch, const std::string& message, double timeout_seconds) {
  Meeting meeting = make_meeting(launch, timeout_seconds);
  Socket listener = listen_on(launch.master_port);
  std::string text = nlohmann::json{{kRefusal, message}}.dump(
      -1, ' ', true, nlohmann::json::error_handler_t::replace);
  for (int i = 1; i < launch.processes; ++i) {
    Greeting greeting;
    std::string address;
    int process = meeting.accept_one(listener, greeting, address);
    if (process < 0) return;
    send_text(meeting, process, text);
  }
}

std::unique_ptr<Link> connect_tcp_link(const Launch& launch, double timeout_seconds) {
  Meeting meeting = make_meeting(launch, timeout_seconds);
  launch.process == 0 ? host_meeting(meeting) : join_meeting(meeting);
  return std::make_unique<TcpLink>(launch.process, std::move(meeting.connections));
}

}  // namespace bev
