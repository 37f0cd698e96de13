// The messages of the ranks that one process hosts. An Exchange is an operation under way on one
// rank: it expects one message from each of some members, stage by stage; whoever brings the last
// message of a stage moves it on, so a posted operation needs no help of its rank to serve others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/hang_report.h"
#include "comm/link.h"
#include "comm/settings.h"

namespace bev {

// No two messages of a run that a rank receives have the same.
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
    std::size_t slot = 0;  // in came
  };
  virtual ~Exchange() = default;

  // All messages of a stage have come. Adds what others need now to `out` and what this rank needs
  // next to `wanted`; none: all has come. Called with the rank's mail locked, by any thread.
  virtual void advance(std::vector<Message>& out, std::vector<Wanted>& wanted) = 0;
  // Puts the result in its place, on the rank's own thread.
  virtual void finish() = 0;
  // The wait for a report of a hang: collective, label, group and data.
  virtual WaitRecord describe() const = 0;
  // "all_reduce of x on rank 3"
  virtual std::string title() const = 0;

  std::vector<Message> came;      // by slot
  std::vector<bool> missing;      // by slot, of the present stage
  std::vector<int> slot_members;  // world ranks
};

struct RankFailure {
  int rank = -1;
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
  std::string where;           // the line that threw, for a bug of ours
  bool announced_here = true;  // this process is the one to tell the user
};

class Mailroom : public Link::Inbox {
 public:
  // Ranks [process x ranks, (process + 1) x ranks) live here.
  // Error(kConfig) ends the run when other processes have other settings.
  Mailroom(Link& link, int ranks, double timeout_seconds, Settings settings);
  ~Mailroom() override;

  int ranks() const;  // of this process
  int first_rank() const;
  int world_size() const;
  // Process 0 tells the others its settings; the link is open.
  void greet();
  // Where a rank says what it is doing; null at the end of its life.
  void set_activity(int rank, const Activity* activity);

  // To any rank; never waits.
  void send(Message message);
  // The rank expects the messages from here on; the exchange stays until forget().
  void post(int rank, Exchange& exchange, std::vector<Exchange::Wanted> wanted);
  // Until all has come; Error(kComm) when the run failed elsewhere or nothing came in time.
  void wait(int rank, Exchange& exchange);
  void forget(int rank, Exchange& exchange);

  // A rank of this process threw. Wakes all ranks; only the first failure of a run counts.
  void fail(RankFailure failure);
  bool aborted() const;
  // The rank's body is over, well or not.
  void end(int rank);
  // Returns when all ranks of the run have ended well, or with the failure that ends it.
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
