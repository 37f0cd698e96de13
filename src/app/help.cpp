#include "app/help.h"

#include <algorithm>
#include <array>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr auto kCommands = std::to_array<Command>({
    {"train", "train a model, or continue one, and export it",
     "bevatron train --preset gpt2-124m --text book.txt --seq-length 256 --train-iters 500 "
     "--export-hf out\n"
     "bevatron train --config run.yaml --tp 2 --pp 2 --train-iters 100\n"
     "bevatron train --preset llama3-8b --tp 8 --dp 4 --bf16 --dry-run",
     [](CommandConfig& config, FieldList& list) { config.run.fields(list); }, run_train},
    {"score", "loss, logits and gradients of a model on given tokens",
     "bevatron score --hf-model DIR --tokens batch.json --logits-out logits.safetensors",
     [](CommandConfig& config, FieldList& list) {
       config.score.fields(list);
       config.run.parallel.fields(list);
       config.run.precision.fields(list);
       config.run.runtime.fields(list);
     },
     run_score},
    {"generate", "continue a prompt",
     "bevatron generate --hf-model DIR --prompt \"Once upon a time\" --max-new-tokens 100 "
     "--temperature 0.8\n"
     "bevatron generate --hf-model DIR --prompt-tokens prompts.json --max-new-tokens 16 --json",
     [](CommandConfig& config, FieldList& list) {
       config.generate.fields(list);
       config.run.parallel.fields(list);
       config.run.precision.fields(list);
       config.run.runtime.fields(list);
     },
     run_generate},
    {"convert", "a checkpoint or a Hugging Face folder to a Hugging Face folder",
     "bevatron convert --load RUN --export-hf OUT\n"
     "bevatron convert --hf-model DIR --export-hf OUT --dtype bf16\n"
     "bevatron convert --hf-model LLAMA --moe-use-upcycling --model-family mixtral --num-experts 8 "
     "--export-hf OUT",
     [](CommandConfig& config, FieldList& list) {
       config.convert.fields(list);
       config.run.model.fields(list);
     },
     run_convert},
    {"checkpoint verify", "check every byte of a checkpoint, or of all steps of a run",
     "bevatron checkpoint verify DIR",
     [](CommandConfig& config, FieldList& list) { config.checkpoint.fields(list); },
     run_checkpoint_verify, "folders"},
    {"checkpoint inspect",
     "where a checkpoint stands, and smallest, largest, norm and NaNs of its tensors",
     "bevatron checkpoint inspect DIR --ckpt-step 1000\n"
     "bevatron checkpoint inspect DIR/iter_0001000 --json",
     [](CommandConfig& config, FieldList& list) { config.checkpoint.fields(list); },
     run_checkpoint_inspect, "folders"},
    {"checkpoint diff", "what differs between two checkpoints: configuration, position, tensors",
     "bevatron checkpoint diff RUN_A RUN_B --ckpt-step 1000\n"
     "bevatron checkpoint diff DIR/iter_0001000 DIR/iter_0002000",
     [](CommandConfig& config, FieldList& list) { config.checkpoint.fields(list); },
     run_checkpoint_diff, "folders"},
    {"verify", "show that layouts give one rank's loss, gradients and weights",
     "bevatron verify --preset llama3-8b --layouts \"tp2sp,pp2 dp4zero3\"\n"
     "bevatron verify --config run.yaml --all 8",
     [](CommandConfig& config, FieldList& list) {
       config.verify.fields(list);
       config.run.fields(list);
     },
     run_verify},
    {"schedule", "learning rate, weight decay and batch size of every iteration, as CSV",
     "bevatron schedule --lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 10 --train-iters 100 "
     "--plot",
     [](CommandConfig& config, FieldList& list) {
       config.schedule.fields(list);
       config.run.fields(list);
     },
     run_schedule},
    {"plan schedule", "order, bubble and memory of a pipeline's computations, drawn over time",
     "bevatron plan schedule --pp 4 --vpp 2 --micro-batches 8\n"
     "bevatron plan schedule --pp 8 --pipeline-schedule zb-v --micro-batches 16 --svg zbv.svg",
     [](CommandConfig& config, FieldList& list) {
       config.plan_schedule.fields(list);
       config.run.parallel.fields(list);
     },
     run_plan_schedule},
    {"preprocess", "text to token files, fast, in constant memory, and resumable",
     "bevatron preprocess --input 'books/*.jsonl.gz' --output-prefix data/books --tokenizer DIR "
     "--append-eod\n"
     "bevatron preprocess --input a.jsonl b.jsonl --json-keys title text --output-prefix data/ab "
     "--tokenizer tokenizer.json --partitions 16 --on-error skip\n"
     "zcat more.gz | bevatron preprocess --input /dev/stdin --input-format jsonl --output-prefix "
     "data/more --tokenizer tokenizer.json",
     [](CommandConfig& config, FieldList& list) { config.preprocess.fields(list); },
     run_preprocess},
    {"data samples", "the order and the tokens of the samples that training would read, as JSON",
     "bevatron data samples --data-path 0.3 books 0.7 web --split 99,1,0 --seq-length 1024 "
     "--sizes 1000,10,0 --dump 50 --output samples.json\n"
     "bevatron data samples --dataset bert --data-path books_text_sentence --tokenizer vocab.txt "
     "--seq-length 512 --sizes 1000,10,0",
     [](CommandConfig& config, FieldList& list) {
       config.data_samples.fields(list);
       config.masked_samples.fields(list);
       config.run.data.fields(list);
       config.run.runtime.fields(list);
     },
     run_data_samples},
    {"data info", "documents, tokens and lengths of token files",
     "bevatron data info --data-path books web",
     [](CommandConfig& config, FieldList& list) { config.data_info.fields(list); }, run_data_info},
    {"data show", "documents of token files, as ids and as text",
     "bevatron data show --data-path books --document 17 --count 3 --tokenizer DIR",
     [](CommandConfig& config, FieldList& list) { config.data_show.fields(list); }, run_data_show},
    {"data merge", "join token files in constant memory",
     "bevatron data merge --input books web --output-prefix all",
     [](CommandConfig& config, FieldList& list) { config.data_merge.fields(list); },
     run_data_merge},
    {"tokenizer train", "make a byte-level BPE tokenizer from text",
     "bevatron tokenizer train --input books/ web.jsonl --vocab-size 32000 --output DIR\n"
     "bevatron tokenizer train --input code/ --vocab-size 8192 --pattern gpt2 --special-tokens "
     "\"<|endoftext|>\" \"<|pad|>\" --output DIR",
     [](CommandConfig& config, FieldList& list) { config.tokenizer_train.fields(list); },
     run_tokenizer_train},
    {"tokenize", "text to token ids, and back",
     "bevatron tokenize --tokenizer DIR --text \"Once upon a time\"\n"
     "bevatron tokenize --tokenizer tokenizer.json --input texts.json --output ids.json\n"
     "bevatron tokenize --tokenizer cl100k_base.tiktoken --input ids.json --decode",
     [](CommandConfig& config, FieldList& list) { config.tokenize.fields(list); }, run_tokenize},
});

// One row of a table: a field or a shorthand.
struct Row {
  std::string section;
  std::vector<std::string> flags;  // the first is the name
  std::string type, value, help;
};

std::vector<Row> rows_of(const Command& command) {
  CommandConfig config;
  FieldList list;
  command.fields(config, list);
  std::vector<Row> rows;
  for (const auto& entry : list.entries()) {
    const Field& field = entry->field;
    Row row{entry->section,
            {"--" + field.name()},
            field.type_text(),
            field.default_text(),
            field.help()};
    for (const std::string& alias : field.aliases()) row.flags.push_back("--" + alias);
    if (field.is_flag() && field.text() == "true") row.flags.push_back("--no-" + field.name());
    if (!field.negation().empty()) row.flags.push_back("--" + field.negation());
    rows.push_back(std::move(row));
  }
  for (const Shorthand& shorthand : list.shorthands()) {
    auto after = std::ranges::find(rows.rbegin(), rows.rend(), shorthand.section, &Row::section);
    rows.insert(after.base(),
                {shorthand.section, {"--" + shorthand.name}, "shorthand", "", shorthand.help});
  }
  return rows;
}

constexpr std::size_t kWidth = 100;

// Behind the `column` characters of its line; many choices go on in the next.
void append_type(std::string& out, std::string_view type, std::size_t column, std::size_t indent) {
  std::vector<std::string> choices = split(type, '|');
  for (std::size_t i = 0; i < choices.size(); ++i) {
    std::string text = i + 1 < choices.size() ? choices[i] + "|" : choices[i];
    if (column + text.size() > kWidth) {
      out.append(concat("\n", std::string(indent, ' ')));
      column = indent;
    }
    out.append(text);
    column += text.size();
  }
}

void append_wrapped(std::string& out, std::string_view text, std::size_t indent) {
  std::size_t column = kWidth;  // forces the first break
  for (const std::string& word : split(text, ' ')) {
    if (column + 1 + word.size() > kWidth) {
      out.append(concat("\n", std::string(indent, ' '), word));
      column = indent + word.size();
    } else {
      out.append(concat(" ", word));
      column += 1 + word.size();
    }
  }
}

// For a cell of a table.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) out.append(c == '|' ? "\\|" : std::string(1, c));
  return out;
}

std::string code(std::string_view text) { return concat("`", cell(text), "`"); }

void append_table(std::string& out, const std::vector<Row>& rows, const std::string& section) {
  out.append("| flag | value | default | meaning |\n| --- | --- | --- | --- |\n");
  for (const Row& row : rows) {
    if (row.section != section) continue;
    std::vector<std::string> flags;
    for (const std::string& flag : row.flags) flags.push_back(code(flag));
    out.append(concat("| ", join(flags, ", "), " | ", code(row.type), " | ", cell(row.value), " | ",
                      cell(row.help), " |\n"));
  }
}

// Flags of other programs' scripts: those that are taken, or those that are not.
void append_foreign(std::string& out, const FieldList& list, bool taken) {
  out.append("| flag | what is said |\n| --- | --- |\n");
  for (const ForeignFlag& flag : list.foreign_flags()) {
    if (flag.taken != taken) continue;
    out.append(concat("| ", code("--" + flag.name), " | ", cell(flag.why), " |\n"));
  }
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

const Command& find_command(std::string_view name) {
  auto found = std::ranges::find(kCommands, name, &Command::name);
  if (found != kCommands.end()) return *found;
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  std::string nearest = nearest_name(name, names);
  BEV_FAIL(ErrorKind::kConfig, "'", name, "' is not a command; ",
           nearest.empty() ? concat("there are ", join(names, ", "))
                           : concat("did you mean ", nearest, "?"));
}

const Command& find_command(std::span<const std::string> arguments) {
  if (arguments.size() > 1) {
    auto found =
        std::ranges::find(kCommands, concat(arguments[0], " ", arguments[1]), &Command::name);
    if (found != kCommands.end()) return *found;
  }
  for (const Command& command : kCommands) {
    BEV_CHECK(!command.name.starts_with(arguments[0] + " "), ErrorKind::kConfig, "'", arguments[0],
              "' is the first word of a command; did you mean ", command.name, "?");
  }
  return find_command(arguments[0]);
}

std::size_t word_count(const Command& command) { return split(command.name, ' ').size(); }

std::string help_text() {
  std::string out =
      "Bevatron trains transformer models at any scale.\n\n"
      "Usage: bevatron COMMAND [--config FILE.yaml] [flags]\n"
      "       bevatron help [COMMAND]\n\nCommands:\n";
  for (const Command& command : kCommands) {
    out.append(concat("  ", command.name, std::string(20 - command.name.size(), ' '),
                      command.summary, "\n"));
  }
  return out +
         "\nA flag goes before the file, the file before a preset. YAML keys are flag names, flat "
         "or "
         "under their\nsection. Results go to stdout, logs to stderr.\n";
}

std::string help_text(const Command& command) {
  std::string out = concat("bevatron ", command.name, ": ", command.summary, "\n\nUsage: bevatron ",
                           command.name, command.words.empty() ? "" : concat(" ", command.words),
                           " [--config FILE.yaml] [flags]\n\nExamples:\n");
  for (const std::string& example : split(command.examples, '\n'))
    out.append(concat("  ", example, "\n"));
  std::string section;
  for (const Row& row : rows_of(command)) {
    if (row.section != section) out.append(concat("\n", section = row.section, ":\n"));
    std::string flags = concat("  ", join(row.flags, ", "));
    if (flags.size() > kWidth) {
      out.append(concat("  ", join(row.flags, ",\n  ")));
      flags = concat("  ", row.flags.back());  // the last line, which the type follows
    } else {
      out.append(flags);
    }
    bool flag = row.type == "flag" || row.type == "shorthand";
    if (!flag) append_type(out, concat("  ", row.type), flags.size(), 6);
    std::string help = row.help;
    bool off = row.value == "none" || (flag && row.value != "true");
    if (!off) help.append(concat(" (default: ", row.value, ")"));
    append_wrapped(out, help, 6);
    out.push_back('\n');
  }
  return out;
}

std::string flags_markdown() {
  std::string out =
      "# Flags\n\nGenerated by `bevatron help --markdown`; do not edit. YAML keys are the same "
      "names, flat or "
      "under their\nsection. Every flag of type `flag` also has `--no-NAME` and `--NAME=false`; "
      "lists take "
      "several values or one\nwith commas. A shorthand sets what is not given by its own name.\n";
  std::vector<std::string> done;
  for (const Command& command : kCommands) {
    std::vector<Row> rows = rows_of(command);
    for (const Row& first : rows) {
      if (std::ranges::find(done, first.section) != done.end()) continue;
      done.push_back(first.section);
      std::vector<std::string> takers;
      for (const Command& other : kCommands) {
        std::vector<Row> theirs = rows_of(other);
        auto found = std::ranges::find(theirs, first.section, &Row::section);
        if (found != theirs.end()) takers.push_back(concat("`", other.name, "`"));
      }
      out.append(concat("\n## ", first.section, "\nTaken by ", join(takers, ", "), ".\n\n"));
      append_table(out, rows, first.section);
    }
  }
  CommandConfig config;
  FieldList list;
  config.run.fields(list);
  out.append(
      "\n## Megatron's flags that are not needed\nTaken with a warning, with or without a value, "
      "by "
      "`train`, `verify`, `schedule`; they change nothing.\n\n");
  append_foreign(out, list, true);
  out.append("\n## Megatron's flags that have another name or are not there\n\n");
  append_foreign(out, list, false);
  return out;
}

}  // namespace bev
