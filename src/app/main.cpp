// bevatron COMMAND [--config FILE.yaml] [flags]
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "app/commands/commands.h"
#include "app/failure.h"
#include "app/help.h"
#include "app/sigbus_handler.h"
#ifdef BEV_HAS_CUDA
#include "backend/cuda/device.h"
#endif
#include "base/colours.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/output.h"

namespace bev {
namespace {

std::string version_text() {
  std::string text = "bevatron " BEV_VERSION;
#ifdef BEV_HAS_CUDA
  text += concat(", CUDA kernels for ", cuda_archs());
#endif
  return text + "\n";
}

int run_program(const std::vector<std::string>& args, const Launch& launch) {
  if (args.empty()) {
    write_stdout(help_text(has_colours(STDOUT_FILENO)));
    return kExitInput;
  }
  if (args[0] == "help" || args[0] == "--help" || args[0] == "-h") {
    write_stdout(help_for(std::span(args).subspan(1), has_colours(STDOUT_FILENO)));
    return kExitOk;
  }
  if (args[0] == "--version" || args[0] == "version") {
    write_stdout(version_text());
    return kExitOk;
  }
  const Command& command = find_command(args);
  return run_command(command, std::span(args).subspan(word_count(command)), launch);
}

// Only process 0 reports a configuration error, which is usually the same in all processes; the
// others wait 2 s for mpirun to kill them, then report their own.
void let_process_0_tell(const Launch& launch) {
  if (launch.kind != LaunchKind::kMpi || launch.process == 0) return;
  std::this_thread::sleep_for(std::chrono::seconds(2));
}

int guarded_main(const std::vector<std::string>& args) {
  Launch launch;
  std::string who;  // prefix of messages
  try {
    launch = find_launch(environment_variables());
    if (launch.process > 0) who = concat("process ", launch.process, ": ");
    return run_program(args, launch);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kConfig) let_process_0_tell(launch);
    log_error(who + failure_text(error.kind(), error.what(), error.where()));
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    log_error(who + "out of memory");
    return kExitFailed;
  } catch (const std::exception& error) {
    log_error(concat(who, "unexpected: ", error.what()));
    return kExitFailed;
  }
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit becomes an error of write(2)
  bev::install_sigbus_handler();
  return bev::guarded_main(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
