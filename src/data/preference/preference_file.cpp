#include "data/preference/preference_file.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "base/json_check.h"
#include "data/batch_file.h"

namespace bev {

namespace {

// An entry of a list, whose members must be among those that are known and the same in all entries.
class EntryReader {
 public:
  EntryReader(const JsonPlace& entry, const JsonPlace& first, std::int64_t vocab_size,
              std::initializer_list<const char*> known)
      : entry_(entry), first_(first), ids_(id_range(vocab_size)) {
    BEV_CHECK(entry.is_object(), ErrorKind::kInput, entry.where(), ": expected an object, got ",
              entry.type_name());
    std::vector<std::string> names(known.begin(), known.end());
    names_ = entry.names();
    for (const std::string& name : names_) {
      bool there = std::ranges::find(names, name) != names.end();
      BEV_CHECK(there, ErrorKind::kInput, entry.where(), ": ", quote(name),
                " is no field; there are ", join(names, ", "));
    }
  }

  bool has(const char* name) const {
    bool here = entry_.has(name), there = first_.has(name);
    BEV_CHECK(here == there, ErrorKind::kInput, (here ? first_ : entry_).where(), ": ", name,
              " is missing, which ", (here ? entry_ : first_).where(), " has");
    return here;
  }
  // True if this entry has it, whatever others have.
  bool has_own(const char* name) const { return entry_.has(name); }
  TokenRow ids(const char* name) const {
    BEV_CHECK(entry_.has(name), ErrorKind::kInput, entry_.where(), ": ", name, " is missing");
    TokenRow row = entry_.member(name).ids(ids_);
    BEV_CHECK(!row.empty(), ErrorKind::kInput, entry_.where(), ": ", name, " is empty");
    return row;
  }
  std::optional<double> number(const char* name) const {
    if (!has(name)) return std::nullopt;
    return entry_.member(name).number();
  }
  // True if there is such a member, perhaps null.
  bool mentions(const char* name) const { return std::ranges::find(names_, name) != names_.end(); }
  double needed(const char* name, const NumberRule& rule = {}) const {
    BEV_CHECK(mentions(name), ErrorKind::kInput, entry_.where(), ": ", name, " is missing");
    return entry_.member(name).number(rule);
  }
  // One number for each of `count` tokens; empty if it is missing.
  std::vector<double> tokens(const char* name, std::size_t count,
                             const NumberRule& rule = {}) const {
    if (!has(name)) return {};
    std::vector<double> out = entry_.member(name).numbers(rule);
    BEV_CHECK(out.size() == count, ErrorKind::kInput, entry_.where(), ": ", name, " has ",
              out.size(), " numbers and the completion ", count, " tokens");
    return out;
  }
  const std::string& where() const { return entry_.where(); }

 private:
  const JsonPlace& entry_;
  const JsonPlace& first_;
  IdRange ids_;
  std::vector<std::string> names_;
};

// Calls read(entry, first entry) for every entry of a list.
template <class Read>
void for_entries(const JsonPlace& batch, FieldId list, const char* what, const Read& read) {
  BEV_CHECK(batch.has(list.name), ErrorKind::kInput, batch.where(), ": ", list.name, " is missing");
  const std::vector<JsonPlace> entries = batch.member(list.name).entries(what);
  for (const JsonPlace& entry : entries) read(entry, entries.front());
}

}  // namespace

std::vector<PreferencePair> read_pairs(const JsonPlace& batch, std::int64_t vocab_size) {
  std::vector<PreferencePair> out;
  for_entries(batch, kPairs, "pairs", [&](const JsonPlace& entry, const JsonPlace& first) {
    EntryReader in(entry, first, vocab_size,
                   {"prompt_ids", "chosen_ids", "rejected_ids", "ref_chosen_logp",
                    "ref_rejected_logp", "margin"});
    out.push_back({in.ids("prompt_ids"), in.ids("chosen_ids"), in.ids("rejected_ids"),
                   in.number("ref_chosen_logp"), in.number("ref_rejected_logp"),
                   in.number("margin")});
    BEV_CHECK(out.back().ref_chosen_logp.has_value() == out.back().ref_rejected_logp.has_value(),
              ErrorKind::kInput, in.where(),
              ": ref_chosen_logp and ref_rejected_logp come together");
  });
  return out;
}

std::vector<LabelledRow> read_labelled_rows(const JsonPlace& batch, std::int64_t vocab_size) {
  std::vector<LabelledRow> out;
  for_entries(batch, kPreferenceRows, "rows", [&](const JsonPlace& entry, const JsonPlace& first) {
    EntryReader in(entry, first, vocab_size,
                   {"prompt_ids", "completion_ids", "label", "kl_completion_ids"});
    LabelledRow row{in.ids("prompt_ids"),
                    in.ids("completion_ids"),
                    in.needed("label", {.truths = true}) != 0,
                    {}};
    if (in.has_own("kl_completion_ids")) row.kl_completion = in.ids("kl_completion_ids");
    out.push_back(std::move(row));
  });
  return out;
}

RolloutBatch read_rollouts(const JsonPlace& batch, std::int64_t vocab_size) {
  RolloutBatch out;
  for_entries(batch, kRollouts, "rollouts", [&](const JsonPlace& entry, const JsonPlace& first) {
    EntryReader in(entry, first, vocab_size,
                   {"prompt_ids", "completion_ids", "mask", "reward", "advantage", "group",
                    "old_logps", "sampling_logps", "ref_logps"});
    Rollout row{.prompt = in.ids("prompt_ids"), .completion = in.ids("completion_ids")};
    std::size_t count = row.completion.size();
    row.mask = in.tokens("mask", count, {.truths = true});
    row.old_logps = in.tokens("old_logps", count, {.nulls = true});
    row.sampling_logps = in.tokens("sampling_logps", count, {.nulls = true});
    row.ref_logps = in.tokens("ref_logps", count, {.nulls = true});
    if (in.has("advantage")) {
      BEV_CHECK(!in.has_own("reward"), ErrorKind::kInput, in.where(),
                ": advantage excludes reward; keep one");
      row.advantage = in.needed("advantage");
    } else {
      BEV_CHECK(in.mentions("reward"), ErrorKind::kInput, in.where(),
                ": reward, or advantage, is missing");
      out.rewards.push_back(in.needed("reward", {.nulls = true}));
    }
    double group = out.rewards.empty() && !in.has("group") ? 0 : in.needed("group");
    BEV_CHECK(group == std::floor(group) && std::abs(group) < 1e15, ErrorKind::kInput, in.where(),
              ": group ", group, " is no whole number");
    out.groups.push_back(static_cast<std::int64_t>(group));
    out.rollouts.push_back(std::move(row));
  });
  return out;
}

}  // namespace bev
