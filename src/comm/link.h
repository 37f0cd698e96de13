// Messages between the processes of a run, over whatever carries them. A link moves bytes and knows
// nothing of ranks; the mailroom of each process hands messages to the ranks that it hosts.
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

// Bytes that several messages may share; written once, before they are sent.
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
  kData,      // between ranks
  kSettings,  // from process 0 to all: what it was started with
  kFailed,    // to process 0: a rank failed, the text says why
  kAbort,     // from process 0 to all: the failure that ends the run
  kQuestion,  // what are your ranks doing?
  kAnswer,    // the text says it
  kDone,      // all ranks of the process have ended well
};

// Travels as it is: the processes of a run have the same program on the same kind of machine.
struct MessageHead {
  MessageKind kind = MessageKind::kData;
  std::uint8_t op = 0;     // kData: the collective; kFailed, kAbort: the kind of error
  std::uint8_t dtype = 0;  // kData
  std::int32_t from = 0;   // world ranks
  std::int32_t to = 0;
  std::uint32_t group = 0;     // number of the group, the same on all its members
  std::int32_t channel = -1;   // -1: a collective
  std::uint32_t stage = 0;     // of the collective
  std::uint64_t sequence = 0;  // number of the call in its group, or of the send on its channel
  std::int64_t in_count = 0;   // elements that the sender brings to the collective
  std::int64_t out_count = 0;  // and that it takes
  std::uint64_t text_bytes = 0, data_bytes = 0;  // filled in by the link
};

struct Message {
  MessageHead head;
  std::string text;  // label, cause or report
  SharedBytes data;
};

class Link {
 public:
  // Takes what arrives. Called by a thread of the link; must not wait for messages.
  class Inbox {
   public:
    virtual ~Inbox() = default;
    virtual void deliver(int process, Message message) = 0;
    // The process ended, or cannot be reached any more.
    virtual void lost(int process) = 0;
  };
  virtual ~Link() = default;
  virtual int process() const = 0;
  virtual int processes() const = 0;

  // Arrivals go to `inbox` from now on, until close().
  virtual void open(Inbox& inbox) = 0;
  // Never waits. Messages may overtake each other.
  virtual void send(int process, Message message) = 0;
  // Every process calls it once it expects no more; returns when all that was sent has arrived.
  virtual void close() = 0;
  // The run has failed and this process is about to end: sends what is queued, for a moment. A link
  // that ends_others() then has its launcher end all processes with this code, when the one that
  // `leads` is this far or does not get there.
  virtual void abandon(int exit_code, bool leads) = 0;
  virtual bool ends_others() const = 0;

  // While a rank waits for messages, arrivals are looked for more eagerly.
  void begin_wait() { waiting_ranks_.fetch_add(1, std::memory_order_relaxed); }
  void end_wait() { waiting_ranks_.fetch_sub(1, std::memory_order_relaxed); }

 protected:
  bool awaited() const { return waiting_ranks_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<int> waiting_ranks_{0};
};

}  // namespace bev
