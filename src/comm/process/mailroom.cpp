#include "comm/process/mailroom.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "comm/wait_records.h"

namespace bev {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

MailAddress address_of(const MessageHead& head) {
  return {head.group, head.channel, head.from, head.stage, head.sequence};
}

Message message_of(MessageKind kind) {
  Message message;
  message.head.kind = kind;
  return message;
}

Message message_of(MessageKind kind, const RankFailure& failure) {
  Message message = message_of(kind);
  message.head.from = failure.rank;
  message.head.op = static_cast<std::uint8_t>(failure.kind);
  message.text = failure.message;
  message.data = SharedBytes::copy_of(failure.where.data(), failure.where.size());
  return message;
}

RankFailure failure_of(const Message& message, bool announced_here) {
  return {message.head.from, static_cast<ErrorKind>(message.head.op), message.text,
          std::string(reinterpret_cast<const char*>(message.data.data()), message.data.size()),
          announced_here};
}

}  // namespace

// Mail of one rank. An address is in at most one of the two maps.
struct Mailroom::RankMail {
  struct Expected {
    Exchange* exchange = nullptr;
    std::size_t slot = 0;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<MailAddress, Message> unclaimed;
  std::map<MailAddress, Expected> expected;
  std::set<const Exchange*> complete;
  std::map<const Exchange*, std::exception_ptr> errors;
  const Exchange* waits_in = nullptr;
  double waits_since = 0;
  const Activity* activity = nullptr;
  bool ended = false;
};

struct Mailroom::State {
  State(Link& carrier, int count, double timeout, Settings given)
      : link(carrier),
        ranks(count),
        timeout_seconds(timeout),
        settings(std::move(given)),
        mails(static_cast<std::size_t>(count)),
        done(static_cast<std::size_t>(carrier.processes()), false),
        answers(static_cast<std::size_t>(carrier.processes())) {}

  Link& link;
  int ranks;
  double timeout_seconds;
  Settings settings;
  std::vector<RankMail> mails;
  std::atomic<bool> aborted{false};

  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0;                                    // ranks of this process that have finished
  std::vector<bool> done;                           // by process
  std::optional<RankFailure> own;                   // first failure in this process
  std::optional<RankFailure> decided;               // the failure that ends the run
  std::vector<std::optional<std::string>> answers;  // wait records by process
  std::set<std::string> names;                      // storage of the names in the wait records
};

Mailroom::Mailroom(Link& link, int ranks, double timeout_seconds, Settings settings)
    : state_(std::make_unique<State>(link, ranks, timeout_seconds, std::move(settings))) {}

Mailroom::~Mailroom() = default;

int Mailroom::ranks() const { return state_->ranks; }
int Mailroom::first_rank() const { return state_->link.process() * state_->ranks; }
int Mailroom::world_size() const { return state_->link.processes() * state_->ranks; }
bool Mailroom::aborted() const { return state_->aborted.load(); }

void Mailroom::greet() {
  if (state_->link.process() != 0) return;
  Message message = message_of(MessageKind::kSettings);
  message.text = to_text(state_->settings);
  send_all(message);
}

Mailroom::RankMail& Mailroom::mail_of(int rank) const {
  return state_->mails.at(static_cast<std::size_t>(rank - first_rank()));
}

void Mailroom::set_activity(int rank, const Activity* activity) {
  RankMail& mail = mail_of(rank);
  std::lock_guard lock(mail.mutex);
  mail.activity = activity;
}

void Mailroom::send(Message message) {
  int process = message.head.to / state_->ranks;
  if (process == state_->link.process()) {
    take(std::move(message));
  } else {
    state_->link.send(process, std::move(message));
  }
}

// Requires the mail lock, like settle(). An exception is stored for the waiting rank and ends the
// stages.
std::vector<Exchange::Wanted> Mailroom::move_on(RankMail& mail, Exchange& exchange,
                                                std::vector<Message>& out) {
  std::vector<Exchange::Wanted> wanted;
  try {
    exchange.advance(out, wanted);
  } catch (...) {
    wanted.clear();
    mail.errors[&exchange] = std::current_exception();
  }
  return wanted;
}

// Requires the mail lock. Registers the wanted messages, and advances while all of them are already
// here.
void Mailroom::settle(RankMail& mail, Exchange& exchange, std::vector<Exchange::Wanted> wanted,
                      std::vector<Message>& out) {
  while (!wanted.empty()) {
    bool all_here = true;
    for (const Exchange::Wanted& want : wanted) {
      auto found = mail.unclaimed.extract(want.address);
      exchange.missing[want.slot] = found.empty();
      if (found.empty()) {
        mail.expected[want.address] = {&exchange, want.slot};
        all_here = false;
      } else {
        exchange.came[want.slot] = std::move(found.mapped());
      }
    }
    if (!all_here) return;
    wanted = move_on(mail, exchange, out);
  }
  mail.complete.insert(&exchange);
  mail.changed.notify_all();
}

void Mailroom::post(int rank, Exchange& exchange, std::vector<Exchange::Wanted> wanted) {
  std::vector<Message> out;
  RankMail& mail = mail_of(rank);
  {
    std::lock_guard lock(mail.mutex);
    settle(mail, exchange, std::move(wanted), out);
  }
  for (Message& message : out) send(std::move(message));
}

// The resulting messages are sent without the lock: two ranks may send to each other (deadlock).
void Mailroom::take(Message message) {
  // A message to a rank that is not here comes from a process with another number of ranks; the
  // comparison of settings ends such a run.
  bool here = message.head.to >= first_rank() && message.head.to < first_rank() + ranks();
  if (!here) return;
  RankMail& mail = mail_of(message.head.to);
  std::vector<Message> out;
  {
    std::lock_guard lock(mail.mutex);
    MailAddress address = address_of(message.head);
    auto found = mail.expected.extract(address);
    if (found.empty()) {
      mail.unclaimed.emplace(address, std::move(message));
      return;
    }
    auto [exchange, slot] = found.mapped();
    exchange->came[slot] = std::move(message);
    exchange->missing[slot] = false;
    if (std::ranges::find(exchange->missing, true) != exchange->missing.end()) return;
    settle(mail, *exchange, move_on(mail, *exchange, out), out);
  }
  for (Message& next : out) send(std::move(next));
}

void Mailroom::wait(int rank, Exchange& exchange) {
  RankMail& mail = mail_of(rank);
  std::unique_lock lock(mail.mutex);
  mail.waits_in = &exchange;
  mail.waits_since = monotonic_seconds();
  state_->link.begin_wait();
  auto ready = [&] { return mail.complete.contains(&exchange); };
  mail.changed.wait_until(lock, after(state_->timeout_seconds),
                          [&] { return ready() || aborted(); });
  state_->link.end_wait();
  if (ready()) {
    mail.waits_in = nullptr;
    auto error = mail.errors.find(&exchange);
    if (error != mail.errors.end()) std::rethrow_exception(error->second);
    return;
  }
  BEV_CHECK(!aborted(), ErrorKind::kComm, exchange.title(), ": another rank failed");
  lock.unlock();
  std::string report = hang_report(all_records());
  try {
    BEV_FAIL(ErrorKind::kComm, exchange.title(), ": nothing came for ", state_->timeout_seconds,
             " s\n", report);
  } catch (const Error& error) {
    // Abort before unwinding: destructors may wait for a device that waits for the lost rank.
    fail({rank, error.kind(), concat("rank ", rank, ": ", error.what()), error.where(), true});
    throw;
  }
}

void Mailroom::forget(int rank, Exchange& exchange) {
  RankMail& mail = mail_of(rank);
  std::lock_guard lock(mail.mutex);
  if (mail.waits_in == &exchange) mail.waits_in = nullptr;
  bool whole = mail.complete.erase(&exchange) > 0;
  mail.errors.erase(&exchange);
  if (whole) return;
  std::erase_if(mail.expected, [&](const auto& item) { return item.second.exchange == &exchange; });
}

std::vector<WaitRecord> Mailroom::local_records() const {
  std::vector<WaitRecord> records;
  for (int rank = first_rank(); rank < first_rank() + ranks(); ++rank) {
    RankMail& mail = mail_of(rank);
    std::lock_guard lock(mail.mutex);
    WaitRecord record;
    if (mail.waits_in != nullptr) {
      record = mail.waits_in->describe();
      record.seconds = monotonic_seconds() - mail.waits_since;
      for (std::size_t i = 0; i < mail.waits_in->missing.size(); ++i) {
        if (mail.waits_in->missing[i]) record.absent.push_back(mail.waits_in->slot_members[i]);
      }
    }
    record.rank = rank;
    record.ended = mail.ended;
    if (mail.activity != nullptr) record.doing = mail.activity->snapshot();
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<WaitRecord> Mailroom::all_records() {
  constexpr double kPatienceSeconds = 2;
  int here = state_->link.process();
  send_all(message_of(MessageKind::kQuestion));
  std::string mine = write_wait_records(local_records());
  std::unique_lock lock(state_->mutex);
  state_->answers[static_cast<std::size_t>(here)] = std::move(mine);
  // If another rank has failed meanwhile, this report is not used.
  state_->changed.wait_until(lock, after(kPatienceSeconds), [&] {
    return aborted() || std::ranges::all_of(state_->answers, [](const auto& a) { return !!a; });
  });
  std::set<std::string>& names = state_->names;
  std::vector<WaitRecord> records;
  for (int process = 0; process < state_->link.processes(); ++process) {
    const auto& answer = state_->answers[static_cast<std::size_t>(process)];
    std::vector<WaitRecord> part;
    if (answer) part = read_wait_records(*answer, names);
    for (int i = 0; !answer && i < ranks(); ++i) {
      WaitRecord silent;
      silent.rank = process * ranks() + i;
      silent.known = false;
      part.push_back(silent);
    }
    std::ranges::move(part, std::back_inserter(records));
  }
  return records;
}

void Mailroom::wake_ranks() {
  state_->aborted.store(true);
  for (RankMail& mail : state_->mails) {
    std::lock_guard lock(mail.mutex);
    mail.changed.notify_all();
  }
}

void Mailroom::send_all(const Message& message) {
  for (int process = 0; process < state_->link.processes(); ++process) {
    if (process != state_->link.process()) state_->link.send(process, message);
  }
}

// The first decision is final. Process 0 decides for all and broadcasts before its own main thread
// can see the decision and exit.
void Mailroom::decide(RankFailure failure) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->decided) return;
    if (state_->link.process() == 0) send_all(message_of(MessageKind::kAbort, failure));
    state_->decided = std::move(failure);
    state_->changed.notify_all();
  }
  wake_ranks();
}

void Mailroom::fail(RankFailure failure) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->own || state_->decided) return;
    state_->own = failure;
    state_->changed.notify_all();
  }
  if (state_->link.process() == 0) return decide(std::move(failure));
  wake_ranks();
  state_->link.send(0, message_of(MessageKind::kFailed, failure));
}

void Mailroom::end(int rank) {
  {
    std::lock_guard lock(mail_of(rank).mutex);
    mail_of(rank).ended = true;
  }
  {
    std::lock_guard lock(state_->mutex);
    if (++state_->ended < state_->ranks || aborted()) return;
    state_->done[static_cast<std::size_t>(state_->link.process())] = true;
    state_->changed.notify_all();
  }
  send_all(message_of(MessageKind::kDone));
}

bool Mailroom::wait_for_end(RankFailure& failure) {
  constexpr double kPatienceSeconds = 5;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] {
    return state_->own || state_->decided ||
           std::ranges::find(state_->done, false) == state_->done.end();
  });
  if (!state_->own && !state_->decided) return true;
  // If process 0 does not answer in time, this process reports its own failure.
  state_->changed.wait_until(lock, after(kPatienceSeconds),
                             [&] { return state_->decided.has_value(); });
  failure = state_->decided ? *state_->decided : *state_->own;
  return false;
}

void Mailroom::deliver(int process, Message message) {
  switch (message.head.kind) {
    case MessageKind::kData:
      return take(std::move(message));
    case MessageKind::kSettings: {
      std::string difference = settings_difference(state_->settings, settings_of(message.text));
      if (difference.empty()) return;
      return fail({first_rank(), ErrorKind::kConfig,
                   concat("process ", state_->link.process(),
                          " was started otherwise than process ", process, ": ", difference),
                   "", true});
    }
    case MessageKind::kFailed:
      return decide(failure_of(message, true));
    case MessageKind::kAbort:
      return decide(failure_of(message, false));
    case MessageKind::kQuestion: {
      Message answer = message_of(MessageKind::kAnswer);
      answer.text = write_wait_records(local_records());
      return state_->link.send(process, std::move(answer));
    }
    case MessageKind::kAnswer: {
      std::lock_guard lock(state_->mutex);
      state_->answers[static_cast<std::size_t>(process)] = std::move(message.text);
      return state_->changed.notify_all();
    }
    case MessageKind::kDone: {
      std::lock_guard lock(state_->mutex);
      state_->done[static_cast<std::size_t>(process)] = true;
      return state_->changed.notify_all();
    }
  }
}

void Mailroom::lost(int process) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->done[static_cast<std::size_t>(process)]) return;
  }
  int first = process * ranks(), last = first + ranks() - 1;
  std::string who = first == last ? concat("rank ", first) : concat("ranks ", first, " to ", last);
  RankFailure failure{first, ErrorKind::kComm,
                      concat("process ", process, " (", who, ") ended before the run did"), "",
                      true};
  // All processes notice the loss; process 0 decides, or process 1 if process 0 is the lost one.
  if (process == 0) {
    failure.announced_here = state_->link.process() == 1;
    decide(std::move(failure));
  } else {
    fail(std::move(failure));
  }
}

}  // namespace bev
