// Message delivery to the ranks of one process. An Exchange is an operation in progress on one
// rank: stage by stage it expects one message from each of some members. The thread that delivers
// the last message of a stage advances it, so a posted operation progresses without its rank's
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/hang_report.h"
#include "comm/process/link.h"
#include "comm/settings.h"

namespace bev {

// Unique key of a message for its receiver.
struct MailAddress {
  std::uint32_t group = 0;
  std::int32_t channel = -1;
  std::int32_t from = 0;
  std::uint32_t stage = 0;
  std::uint64_t sequence = 0;
  auto operator<=>(const MailAddress&) const = default;
};

class Exchange {
 public:
  struct Wanted {
    MailAddress address;
    std::size_t slot = 0;  // index in `came`
  };
  virtual ~Exchange() = default;

  // Called when all messages of a stage have arrived. Appends the messages to send to `out` and
  // those expected next to `wanted`; none: all stages are complete. Called by any thread, with the
  // rank's mail locked.
  virtual void advance(std::vector<Message>& out, std::vector<Wanted>& wanted) = 0;
  // Writes the result; called on the rank's own thread.
  virtual void finish() = 0;
  // Wait record for the hang report: collective, label, group and data.
  virtual WaitRecord describe() const = 0;
  // "all_reduce of x on rank 3"
  virtual std::string title() const = 0;

  std::vector<Message> came;      // received messages by slot
  std::vector<bool> missing;      // by slot, for the current stage
  std::vector<int> slot_members;  // world ranks by slot
};

struct RankFailure {
  int rank = -1;
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
  std::string where;           // source line of the throw, for internal errors
  bool announced_here = true;  // this process reports the failure to the user
};

class Mailroom : public Link::Inbox {
 public:
  // This process hosts ranks [process x ranks, (process + 1) x ranks). If another process has
  // different settings, the run ends with Error(kConfig).
  Mailroom(Link& link, int ranks, double timeout_seconds, Settings settings);
  ~Mailroom() override;

  int ranks() const;  // ranks of this process
  int first_rank() const;
  int world_size() const;
  // Process 0 sends its settings to the others; requires an open link.
  void greet();
  // Sets the rank's activity for hang reports; null before it is destroyed.
  void set_activity(int rank, const Activity* activity);

  // Sends to any rank; never blocks.
  void send(Message message);
  // Registers the messages that the exchange expects; it must live until forget().
  void post(int rank, Exchange& exchange, std::vector<Exchange::Wanted> wanted);
  // Blocks until the exchange is complete; throws Error(kComm) if the run failed elsewhere or on
  // timeout.
  void wait(int rank, Exchange& exchange);
  void forget(int rank, Exchange& exchange);

  // Reports that a rank of this process threw. Wakes all ranks; only the run's first failure
  // counts.
  void fail(RankFailure failure);
  bool aborted() const;
  // The rank's body has returned or thrown.
  void end(int rank);
  // Returns true when all ranks of the run have finished without error, or false with the failure
  // that ends the run.
  bool wait_for_end(RankFailure& failure);

  void deliver(int process, Message message) override;
  void lost(int process) override;

 private:
  struct RankMail;
  struct State;
  RankMail& mail_of(int rank) const;
  std::vector<Exchange::Wanted> move_on(RankMail& mail, Exchange& exchange,
                                        std::vector<Message>& out);
  void settle(RankMail& mail, Exchange& exchange, std::vector<Exchange::Wanted> wanted,
              std::vector<Message>& out);
  void take(Message message);
  void send_all(const Message& message);
  void decide(RankFailure failure);
  void wake_ranks();
  std::vector<WaitRecord> local_records() const;
  std::vector<WaitRecord> all_records();

  std::unique_ptr<State> state_;
};

}  // namespace bev
