// Transport of messages between the processes of a run (TCP or MPI). A link moves bytes and knows
// nothing of ranks; each process's Mailroom delivers messages to the ranks it hosts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace bev {

// Reference-counted buffer that several messages may share; it is written once, before sending.
class SharedBytes {
 public:
  SharedBytes() = default;
  explicit SharedBytes(std::size_t size)
      : data_(size > 0 ? std::make_shared_for_overwrite<std::byte[]>(size) : nullptr),
        size_(size) {}
  static SharedBytes copy_of(const void* from, std::size_t size) {
    SharedBytes bytes(size);
    if (size > 0) std::memcpy(bytes.data(), from, size);
    return bytes;
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  std::shared_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

enum class MessageKind : std::uint8_t {
  kData,      // payload between ranks
  kSettings,  // from process 0 to all: its settings
  kFailed,    // to process 0: a rank failed; the text has the cause
  kAbort,     // from process 0 to all: the failure that ends the run
  kQuestion,  // asks for wait records (hang report)
  kAnswer,    // the text has the wait records
  kDone,      // all ranks of the process have finished without error
};

// Wire header, sent as raw bytes: all processes run the same binary on the same architecture.
struct MessageHead {
  MessageKind kind = MessageKind::kData;
  std::uint8_t op = 0;     // kData: the collective; kFailed, kAbort: the error kind
  std::uint8_t dtype = 0;  // kData
  std::int32_t from = 0;   // world rank
  std::int32_t to = 0;
  std::uint32_t group = 0;     // id of the group, equal on all its members
  std::int32_t channel = -1;   // -1: a collective
  std::uint32_t stage = 0;     // stage of the collective
  std::uint64_t sequence = 0;  // index of the call in its group, or of the send on its channel
  std::int64_t in_count = 0;   // elements of the sender's input of the collective
  std::int64_t out_count = 0;  // elements of the sender's output
  std::uint64_t text_bytes = 0, data_bytes = 0;  // set by the link
};

struct Message {
  MessageHead head;
  std::string text;  // label, cause or wait records
  SharedBytes data;
};

class Link {
 public:
  // Receives messages. Called on a thread of the link; must not wait for messages.
  class Inbox {
   public:
    virtual ~Inbox() = default;
    virtual void deliver(int process, Message message) = 0;
    // The process has ended or is unreachable.
    virtual void lost(int process) = 0;
  };
  virtual ~Link() = default;
  virtual int process() const = 0;
  virtual int processes() const = 0;

  // Delivers arrivals to `inbox` from now on, until close().
  virtual void open(Inbox& inbox) = 0;
  // Never blocks. Messages may be reordered.
  virtual void send(int process, Message message) = 0;
  // Every process calls it when it expects no more messages; returns when all that was sent has
  // arrived.
  virtual void close() = 0;
  // The run has failed and this process is about to exit: tries for a moment to send what is
  // queued. If ends_others(), the launcher then ends all processes with this exit code; a process
  // that does not lead gives the leading one time to do so first.
  virtual void abandon(int exit_code, bool leads) = 0;
  virtual bool ends_others() const = 0;

  // While a rank waits for messages, the link polls more eagerly.
  void begin_wait() { waiting_ranks_.fetch_add(1, std::memory_order_relaxed); }
  void end_wait() { waiting_ranks_.fetch_sub(1, std::memory_order_relaxed); }

 protected:
  bool awaited() const { return waiting_ranks_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<int> waiting_ranks_{0};
};

}  // namespace bev
