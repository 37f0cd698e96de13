#include "comm/launch.h"

#include <charconv>
#include <optional>

#include "base/error.h"

namespace bev {

namespace {

class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& all) : all_(all) {}

  bool has(const std::string& name) const { return all_.contains(name); }
  std::string text(const std::string& name) const {
    auto found = all_.find(name);
    return found == all_.end() ? std::string() : found->second;
  }
  int number(const std::string& name, int least, int most) const {
    std::optional<int> value = leading_number(name);
    std::string written = text(name);
    bool whole = value && std::to_string(*value) == written;
    BEV_CHECK(whole && *value >= least && *value <= most, ErrorKind::kConfig, name, ": '", written,
              "' is not a number from ", least, " to ", most);
    return *value;
  }
  // "2(x3),1" -> 2
  std::optional<int> leading_number(const std::string& name) const {
    std::string written = text(name);
    int value = 0;
    auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), value);
    if (error != std::errc()) return std::nullopt;
    return value;
  }

 private:
  const std::map<std::string, std::string>& all_;
};

constexpr int kMostProcesses = 1 << 20;

// `size` and `rank` are names of variables; nullopt unless there are several processes.
std::optional<Launch> numbered(const Variables& variables, LaunchKind kind, const char* size,
                               const char* rank) {
  if (!variables.has(size)) return std::nullopt;
  Launch launch;
  launch.processes = variables.number(size, 1, kMostProcesses);
  if (launch.processes == 1) return std::nullopt;
  BEV_CHECK(variables.has(rank), ErrorKind::kConfig, rank, ": is not set, but ", size, " is ",
            launch.processes);
  launch.process = variables.number(rank, 0, launch.processes - 1);
  launch.kind = kind;
  return launch;
}

std::optional<Launch> find_mpirun(const Variables& variables) {
  std::optional<Launch> launch =
      numbered(variables, LaunchKind::kMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  if (!launch) launch = numbered(variables, LaunchKind::kMpi, "PMI_SIZE", "PMI_RANK");
  if (!launch) return std::nullopt;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (variables.has(name)) launch->local_processes = variables.number(name, 1, launch->processes);
  }
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}) {
    if (variables.has(name)) {
      launch->local_process = variables.number(name, 0, launch->processes - 1);
    }
  }
  launch->bound = variables.has("OMPI_MCA_orte_bound_at_launch");
  return launch;
}

std::optional<Launch> find_torchrun(const Variables& variables) {
  if (variables.has("RANK")) {
    BEV_CHECK(variables.has("WORLD_SIZE"), ErrorKind::kConfig,
              "WORLD_SIZE: is not set, but RANK is ", variables.text("RANK"));
  }
  std::optional<Launch> launch = numbered(variables, LaunchKind::kTcp, "WORLD_SIZE", "RANK");
  if (!launch) return std::nullopt;
  launch->master_address = variables.text("MASTER_ADDR");
  BEV_CHECK(!launch->master_address.empty(), ErrorKind::kConfig,
            "MASTER_ADDR: is not set, but WORLD_SIZE is ", launch->processes,
            "; give the address of process 0");
  if (variables.has("MASTER_PORT")) launch->master_port = variables.number("MASTER_PORT", 1, 65535);
  bool here = launch->master_address == "localhost" || launch->master_address.starts_with("127.") ||
              launch->master_address == "::1";
  launch->local_processes = here ? launch->processes : 1;
  if (variables.has("LOCAL_WORLD_SIZE")) {
    launch->local_processes = variables.number("LOCAL_WORLD_SIZE", 1, launch->processes);
  }
  launch->local_process = launch->process % launch->local_processes;
  if (variables.has("LOCAL_RANK")) {
    launch->local_process = variables.number("LOCAL_RANK", 0, launch->processes - 1);
  }
  return launch;
}

// Only srun sets the task count of a step; a batch script has the other SLURM variables too.
std::optional<Launch> find_srun(const Variables& variables) {
  std::optional<Launch> launch =
      numbered(variables, LaunchKind::kMpi, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID");
  if (!launch) return std::nullopt;
  launch->local_processes = variables.leading_number("SLURM_STEP_TASKS_PER_NODE").value_or(1);
  if (variables.has("SLURM_LOCALID")) {
    launch->local_process = variables.number("SLURM_LOCALID", 0, launch->processes - 1);
  }
  launch->bound = variables.has("SLURM_CPUS_PER_TASK");
  return launch;
}

}  // namespace

Launch find_launch(const std::map<std::string, std::string>& environment) {
  Variables variables(environment);
  for (auto find : {find_mpirun, find_torchrun, find_srun}) {
    if (std::optional<Launch> launch = find(variables)) return *launch;
  }
  return {};
}

}  // namespace bev
