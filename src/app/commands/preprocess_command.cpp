// preprocess: tokenizes text into token files.
#include <fmt/format.h>

#include "app/commands/commands.h"
#include "app/megatron_flags.h"
#include "app/options.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/output.h"
#include "base/plural.h"
#include "base/text.h"
#include "data/preprocess/preprocess.h"
#include "data/preprocess/preprocess_config.h"
#include "data/preprocess/preprocess_report.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

struct PreprocessFlags : PreprocessConfig {
  void fields(FieldList& list) {
    PreprocessConfig::fields(list);
    add_megatron_flags(list, "preprocess");
  }
};

void print_result(const PreprocessResult& result, const PreprocessReport& report) {
  std::string text;
  for (const PreprocessOutput& output : result.outputs) {
    text += fmt::format("{}: {}, {}, {}\n", output.prefix, count_of(output.documents, "document"),
                        count_of(output.sequences, "sequence"), count_of(output.tokens, "token"));
    if (output.tokens > 0) continue;
    bool none_left = result.skipped > 0 && output.documents == 0;
    log_warning(concat(output.prefix, ": holds no tokens: ",
                       none_left ? "every document was skipped" : "the input has no text"));
  }
  if (result.skipped > 0) text += concat(count_of(result.skipped, "document"), " skipped\n");
  if (std::string summary = report.summary(); !summary.empty()) log_info(summary);
  write_stdout(text);
}

int run_preprocess(PreprocessFlags& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  if (input.launch.process != 0) return kExitOk;  // one process does the work
  StopSignal signal("the batch");
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(wanted.tokenizer, wanted.tiktoken);
  PreprocessReport report(signal);
  PreprocessResult result = preprocess(wanted, *tokenizer, report);
  if (!result.stopped) {
    print_result(result, report);
    return kExitOk;
  }
  std::string kept = result.parts > 1
                         ? fmt::format(
                               "{} of {} parts are kept; the same command goes on with the "
                               "next",
                               result.parts_done, result.parts)
                         : "nothing is kept; with --partitions a run can go on where it was";
  log_info(fmt::format("stopped by signal {}: {}", signal.received(), kept));
  return kExitSignalBase + signal.received();
}

}  // namespace

const Command kPreprocessCommand = {
    .name = "preprocess",
    .summary = "text to token files, fast, in constant memory, and resumable",
    .examples =
        "bevatron preprocess --input 'books/*.jsonl.gz' --output-prefix data/books --tokenizer DIR "
        "--append-eod\n"
        "bevatron preprocess --input a.jsonl b.jsonl --json-keys title text --output-prefix "
        "data/ab --tokenizer tokenizer.json --partitions 16 --on-error skip\n"
        "zcat more.gz | bevatron preprocess --input /dev/stdin --input-format jsonl "
        "--output-prefix data/more --tokenizer tokenizer.json",
    .call = call_of<PreprocessFlags, run_preprocess>};

}  // namespace bev
