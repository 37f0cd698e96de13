#include "comm/hang_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace bev {

namespace {

// "step 12, forward of micro-batch 2, layer 5, op attention", omitting what is unknown.
std::string doing_text(const Activity::Snapshot& doing) {
  std::vector<std::string> parts;
  if (doing.step >= 0) parts.push_back(concat("step ", doing.step));
  std::string action = doing.action;
  if (doing.micro_batch >= 0)
    action += concat(action.empty() ? "" : " of ", "micro-batch ", doing.micro_batch);
  if (!action.empty()) parts.push_back(action);
  if (doing.layer >= 0) parts.push_back(concat("layer ", doing.layer));
  if (*doing.op != 0) parts.push_back(concat("op ", doing.op));
  return join(parts, ", ");
}

// Predicate of a sentence about the rank.
std::string state_text(const WaitRecord& record) {
  if (!record.known) return "is not heard of";
  if (record.ended) return "has ended";
  std::string doing = doing_text(record.doing);
  return doing.empty() ? "computes" : "is in " + doing;
}

std::string line_of(const WaitRecord& record) {
  if (record.collective.empty()) return concat("rank ", record.rank, " ", state_text(record));
  std::string doing = doing_text(record.doing);
  return concat("rank ", record.rank, " waits ", fmt::format("{:.2f}", record.seconds), " s for ",
                ranks_text(record.absent), " in ", record.collective, " of ", record.label,
                " (group ", record.group, record.data.empty() ? "" : ", ", record.data, ")",
                doing.empty() ? "" : ", in ", doing);
}

// Record of the rank; one with known = false if there is none.
WaitRecord record_of(std::span<const WaitRecord> ranks, int rank) {
  auto found = std::ranges::find(ranks, rank, &WaitRecord::rank);
  if (found != ranks.end()) return *found;
  WaitRecord unknown;
  unknown.rank = rank;
  unknown.known = false;
  return unknown;
}

// Follows the waits-for edges from a waiting rank. If no rank is to blame, they end in a cycle.
std::vector<int> find_circle(std::span<const WaitRecord> ranks) {
  auto start = std::ranges::find_if(ranks, [](const WaitRecord& r) { return !r.absent.empty(); });
  if (start == ranks.end()) return {};
  std::vector<int> path;
  int at = start->rank;
  while (std::ranges::find(path, at) == path.end()) {
    path.push_back(at);
    WaitRecord record = record_of(ranks, at);
    if (record.absent.empty()) return {};
    at = record.absent.front();
  }
  path.erase(path.begin(), std::ranges::find(path, at));
  std::ranges::sort(path);
  return path;
}

std::string conclusion(std::span<const WaitRecord> ranks) {
  std::vector<int> missed;
  for (const WaitRecord& record : ranks) {
    missed.insert(missed.end(), record.absent.begin(), record.absent.end());
  }
  std::ranges::sort(missed);
  missed.erase(std::unique(missed.begin(), missed.end()), missed.end());
  std::vector<std::string> culprits;
  for (int rank : missed) {
    WaitRecord record = record_of(ranks, rank);
    if (!record.collective.empty()) continue;
    culprits.push_back(concat("rank ", rank, " never came: it ", state_text(record)));
  }
  if (!culprits.empty()) return join(culprits, "; ");
  std::vector<int> circle = find_circle(ranks);
  if (circle.empty()) return "no rank waits for another";
  return concat(ranks_text(circle), " wait for each other: their collectives differ in order");
}

}  // namespace

std::string ranks_text(std::span<const int> ranks) {
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(concat("rank ", rank));
  return join(names, ", ");
}

std::string hang_report(std::span<const WaitRecord> ranks) {
  std::string text;
  for (const WaitRecord& record : ranks) text += line_of(record) + "\n";
  return text + conclusion(ranks);
}

}  // namespace bev
