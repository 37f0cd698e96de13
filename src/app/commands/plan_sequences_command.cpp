// plan sequences: how dynamic context parallelism shares out sequences of given lengths, and the
// balance of the ranks compared with fixed context parallelism.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/output.h"
#include "base/text.h"
#include "data/sequence_schedule.h"
#include "parallel/config.h"

namespace bev {

namespace {

struct PlanSequencesOptions {
  std::vector<std::int64_t> lengths;
  bool json = false;
  ParallelConfig parallel;

  void fields(FieldList& list);
};

void PlanSequencesOptions::fields(FieldList& list) {
  list.section("plan sequences");
  list.add("sequence-lengths", lengths, "tokens of each sequence of a global batch")
      .min(1)
      .limit(1 << 28);
  list.add("json", json, "print the result as JSON, with the sequences of every micro-batch");
  parallel.fields(list);
}

struct Balance {
  SequenceSchedule schedule;
  double imbalance = 1, fixed = 1;  // the largest rank's attention FLOPs over the mean
};

Balance balance_of(const PlanSequencesOptions& wanted) {
  const ParallelConfig& parallel = wanted.parallel;
  const std::int64_t cp = parallel.context_parallel_size, dp = parallel.data_parallel_size;
  Balance balance;
  balance.schedule =
      schedule_sequences(wanted.lengths, {cp * dp, parallel.max_seqlen_per_dp_cp_rank});
  balance.imbalance = imbalance(attention_pairs(balance.schedule, wanted.lengths, cp * dp));
  balance.fixed = imbalance(fixed_attention_pairs(wanted.lengths, cp, dp));
  return balance;
}

std::vector<std::int64_t> lengths_of(const SequencePack& pack,
                                     std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> out;
  for (std::size_t i : pack.sequences) out.push_back(lengths[i]);
  return out;
}

std::string text_of(std::span<const std::int64_t> lengths) {
  std::string text;
  for (std::int64_t length : lengths) text += concat(text.empty() ? "" : " ", length);
  return text;
}

std::string table_of(const Balance& balance, std::span<const std::int64_t> lengths) {
  std::string text = "ranks       sequences\n";
  for (const SequencePack& pack : balance.schedule.packs) {
    const std::int64_t count = std::int64_t{1} << pack.power, first = pack.block * count;
    const std::string ranks = count == 1 ? concat(first) : concat(first, " to ", first + count - 1);
    text += fmt::format("{:<12}{}\n", ranks, text_of(lengths_of(pack, lengths)));
  }
  return text + fmt::format(
                    "{} micro-batches on each rank\n"
                    "largest rank's attention FLOPs over the mean: {:.3f}, with fixed context "
                    "parallelism {:.3f}\n",
                    balance.schedule.micro_batches, balance.imbalance, balance.fixed);
}

std::string json_of(const Balance& balance, std::span<const std::int64_t> lengths) {
  nlohmann::ordered_json out, packs = nlohmann::ordered_json::array();
  for (const SequencePack& pack : balance.schedule.packs) {
    const std::int64_t count = std::int64_t{1} << pack.power;
    packs.push_back({{"first_rank", pack.block * count},
                     {"ranks", count},
                     {"sequences", pack.sequences},
                     {"lengths", lengths_of(pack, lengths)}});
  }
  out["micro_batches"] = balance.schedule.micro_batches;
  out["packs"] = std::move(packs);
  out["flops_imbalance"] = balance.imbalance;
  out["fixed_flops_imbalance"] = balance.fixed;
  return out.dump() + "\n";
}

int run_plan_sequences(PlanSequencesOptions& wanted, const CommandInput& input) {
  if (input.launch.process != 0) return kExitOk;  // one process prints it
  std::vector<std::string> problems;
  if (wanted.lengths.empty()) {
    problems.push_back("--sequence-lengths: is missing; give the tokens of each sequence");
  }
  wanted.parallel.hybrid_context_parallel = true;
  input.options.add_problems(problems);
  input.options.add_problems(wanted.parallel.resolve());
  input.options.throw_problems();
  const Balance balance = balance_of(wanted);
  write_stdout(wanted.json ? json_of(balance, wanted.lengths) : table_of(balance, wanted.lengths));
  return kExitOk;
}

}  // namespace

const Command kPlanSequencesCommand = {
    .name = "plan sequences",
    .summary = "which ranks share which sequences of a batch, and their balance",
    .examples =
        "bevatron plan sequences --dp 2 --cp 2 --max-seqlen-per-dp-cp-rank 4096 --sequence-lengths "
        "16000,4000,3000,2500,2000,1000,500,500",
    .call = call_of<PlanSequencesOptions, run_plan_sequences>};

}  // namespace bev
