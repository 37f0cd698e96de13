// The first hour of a new user: flags, help, generation and chat.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/program/first_hour.h"
#include "tests/support/terminal.h"

namespace bev::first_hour {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// A tokenizer with chat tokens, a template, and conversations in which the answer repeats a letter.
void write_conversations(const TempFolder& folder) {
  write_corpus(folder);
  Outcome made = bevatron(folder,
                          "tokenizer train --input corpus.txt --vocab-size 300 --output tok "
                          "--special-tokens '<|endoftext|>' '<|im_start|>' '<|im_end|>'");
  ASSERT_EQ(made.code, 0) << made.err;
  write_file(folder.path("chat.jinja"),
             "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  std::string lines;
  for (int i = 0; i < 16; ++i) {
    char letter = static_cast<char>('a' + i % 2);
    lines += concat(R"({"prompt": "say )", letter, R"(", "response": ")", std::string(3, letter),
                    "\"}\n");
  }
  write_file(folder.path("chats.jsonl"), lines);
}

std::string tiny_sft(const std::string& more) {
  return "train --family llama --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
         "--ffn-hidden-size 48 --position-embedding-type rope --normalization RMSNorm --swiglu "
         "--disable-bias-linear --max-position-embeddings 256 --seq-length 64 --micro-batch-size 4 "
         "--lr 2e-2 --loss-svg '' --sft-data chats.jsonl --tokenizer tok "
         "--chat-template chat.jinja " +
         more;
}

// An untrained model with the template, which talks without end.
void write_chatterbox(const TempFolder& folder) {
  write_conversations(folder);
  Outcome made = bevatron(folder, tiny_sft("--train-iters 1 --lr 0 --export-hf out"));
  ASSERT_EQ(made.code, 0) << made.err;
}

TEST(FirstHour, TheChatTemplateIsExportedAndTheEndOfATurnEndsGeneration) {
  TempFolder folder;
  write_conversations(folder);
  // Several templates, of which the chosen one becomes the default, and end tokens that are there.
  json settings = json::parse(read_file(folder.path("tok/tokenizer_config.json")));
  settings["chat_template"] = {{{"name", "default"}, {"template", "OLD"}},
                               {{"name", "tool_use"}, {"template", "TOOLS{{ eos_token }}"}}};
  write_file(folder.path("tok/tokenizer_config.json"), settings.dump());
  write_file(folder.path("tok/generation_config.json"), R"({"eos_token_id": [0], "top_k": 7})");
  Outcome trained =
      bevatron(folder, tiny_sft("--train-iters 40 --export-hf out --save run --save-interval 40 "
                                "--save-hf copy"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  Outcome converted = bevatron(folder, "convert --load run --export-hf converted");
  ASSERT_EQ(converted.code, 0) << converted.err;
  std::string copy = list_directory(folder.path("copy")).front();
  copy = path_exists(folder.path("copy/config.json")) ? "copy" : concat("copy/", copy);
  const std::string wanted = read_file(folder.path("chat.jinja"));
  for (const std::string& name : {std::string("out"), std::string("converted"), copy}) {
    SCOPED_TRACE(name);
    auto at = [&](const char* file) { return folder.path(concat(name, "/", file)); };
    EXPECT_EQ(read_file(at("chat_template.jinja")), wanted);
    EXPECT_EQ(read_file(at("additional_chat_templates/tool_use.jinja")), "TOOLS{{ eos_token }}");
    json all = json::parse(read_file(at("tokenizer_config.json")))["chat_template"];
    EXPECT_EQ(all[0]["template"], wanted);
    EXPECT_EQ(all[1]["name"], "tool_use");
    EXPECT_EQ(json::parse(read_file(at("config.json")))["eos_token_id"], json({0, 2}));
    json generation = json::parse(read_file(at("generation_config.json")));
    EXPECT_EQ(generation["eos_token_id"], json({0, 2}));
    EXPECT_EQ(generation["top_k"], 7);
  }
  Outcome said = bevatron(folder, "generate --hf-model out --chat --prompt 'say b' --json");
  ASSERT_EQ(said.code, 0) << said.err;
  json answer = json::parse(said.out);
  EXPECT_EQ(answer["text"][0], "bbb");
  EXPECT_EQ(answer["generated"][0].back(), 2);
  // The same without a template, from the end tokens of the folder alone.
  said = bevatron(folder,
                  "generate --hf-model converted --prompt '<|im_start|>user\nsay a<|im_end|>\n"
                  "<|im_start|>assistant\n' --max-new-tokens 30");
  EXPECT_EQ(said.out, "aaa\n") << said.err;
  // Over itself, and with a template by name.
  Outcome named =
      bevatron(folder, "convert --hf-model out --chat-template tool_use --export-hf converted");
  ASSERT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(read_file(folder.path("converted/chat_template.jinja")), "TOOLS{{ eos_token }}");
  ASSERT_EQ(run_shell(folder, "rm chat.jinja").code, 0);
  Outcome lost = bevatron(folder, "convert --load run --export-hf lost");
  EXPECT_EQ(lost.code, 0) << lost.err;
  EXPECT_THAT(lost.err, HasSubstr("chat.jinja is no file"));
  EXPECT_THAT(lost.err, HasSubstr("--chat-template names another place"));
}

TEST(FirstHour, ATurnThatNoTokenEndsIsSaid) {
  TempFolder folder;
  write_conversations(folder);
  Outcome outcome = bevatron(folder, tiny_sft("--tokenizer byte --train-iters 1 --export-hf out"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("generation cannot stop there"));
  EXPECT_EQ(read_file(folder.path("out/chat_template.jinja")),
            read_file(folder.path("chat.jinja")));
}

TEST(FirstHour, OfAFlagGivenTwiceTheLastOneCounts) {
  TempFolder folder;
  write_corpus(folder);
  write_file(folder.path("script.sh"),
             concat("#!/bin/sh\n", BEV_BINARY_DIR,
                    "/bevatron schedule --lr oops --train-iters 3 "
                    "--rampup-batch-size 9 9 9 --global-batch-size 1 --no-bf16 --bf16 \"$@\"\n"));
  Outcome outcome =
      run_shell(folder, "sh script.sh --lr 0.5 --train_iters=1 --rampup-batch-size= --no-bf16");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\n1,0,0.5,"));
  EXPECT_THAT(outcome.err, HasSubstr("--lr: given twice, as --lr oops, then --lr 0.5; "
                                     "the last one counts"));
  EXPECT_THAT(outcome.err, HasSubstr("as --train-iters 3, then --train-iters 1;"));
  EXPECT_THAT(outcome.err, HasSubstr("given 3 times, as --no-bf16, then --bf16, then --no-bf16;"));
  EXPECT_EQ(split(outcome.out, '\n').size(), 3u) << outcome.out;
  outcome = bevatron(folder, "schedule --config a.yaml --config b.yaml");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--config: given twice, as a.yaml and b.yaml"));
}

TEST(FirstHour, NamesOfOtherProgramsGetTheRightName) {
  TempFolder folder;
  Outcome outcome = bevatron(
      folder,
      "train --learning_rate 1 --batch-size 2 --max-steps 3 --output-dir o --model m "
      "--num-train-epochs 1 --per_device_train_batch_size 2 --gradient-accumulation-steps 4 "
      "--block_size 8 --n-layer 2 --n_head 2 --n_embd 4 --warmup-ratio 0.1 --stop x --max-lr 2 "
      "--zero-stage 2 --lr-scheduler-type cosine");
  EXPECT_EQ(outcome.code, 2);
  for (const char* part :
       {"--learning-rate: unknown flag; here it is --lr",
        "--batch-size: give --micro-batch-size, or the samples of a step to --global-batch-size",
        "--max-steps: unknown flag; here it is --train-iters",
        "--output-dir: unknown flag; checkpoints go to --save",
        "--model: unknown flag; a Hugging "
        "Face folder goes to --hf-model",
        "--num-train-epochs: unknown flag; ",
        "--per-device-train-batch-size: unknown flag; here it is --micro-batch-size",
        "--gradient-accumulation-steps: unknown flag; give --global-batch-size",
        "--block-size: unknown flag; here it is --seq-length", "here it is --num-layers",
        "here it is --num-attention-heads", "here it is --hidden-size",
        "here it is --lr-warmup-fraction", "--stop: unknown flag; `bevatron help --search WORD`",
        "--max-lr: unknown flag; here it is --lr", "optim_grads", "here it is --lr-decay-style"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  EXPECT_THAT(outcome.err, Not(HasSubstr("did you mean --tp")));
  write_file(folder.path("axolotl.yaml"), "base_model: x\nsequence_len: 8\n");
  outcome = bevatron(folder, "train --config axolotl.yaml");
  EXPECT_THAT(outcome.err, HasSubstr("axolotl.yaml:2: sequence_len: unknown key; here it is "
                                     "seq-length"));
  outcome = bevatron(folder, "generate --model x --max-tokens 3");
  EXPECT_THAT(outcome.err, HasSubstr("--model: unknown flag; here it is --hf-model"));
  EXPECT_THAT(outcome.err, HasSubstr("--max-tokens: unknown flag; here it is --max-new-tokens"));
  for (auto [name, here] : {std::pair{"--max-num-seqs 4", "--max-seqs"},
                            {"--max-num-batched-tokens 512", "--max-step-tokens"},
                            {"--gpu-memory-utilization 0.9", "--kv-cache-tokens"},
                            {"--beam-width 3", "--num-beams"},
                            {"--batch-invariant-mode", "--exact"}}) {
    outcome = bevatron(folder, concat("generate --hf-model x ", name));
    EXPECT_THAT(outcome.err, HasSubstr(here)) << name;
  }
  outcome = bevatron(folder, "generate --hf-model meta-llama/Llama-3.2-1B --prompt x");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("`hf download meta-llama/Llama-3.2-1B --local-dir "
                                     "Llama-3.2-1B`, then give Llama-3.2-1B"));
  outcome = bevatron(folder, "generate --hf-model /no/where --prompt x");
  EXPECT_THAT(outcome.err, Not(HasSubstr("hf download")));
  outcome = bevatron(folder, "train --preset meta-llama/Llama-3.2-1B --train-iters 1");
  EXPECT_THAT(outcome.err, HasSubstr("did you mean llama3.2-1b?"));
}

TEST(FirstHour, PromptsComeFromFilesAndPipes) {
  TempFolder folder;
  write_chatterbox(folder);
  const std::string generate = "generate --hf-model out --max-new-tokens 6 --ignore-eos ";
  auto ids = [&](const std::string& words, const std::string& before = "") {
    Outcome outcome = bevatron(folder, concat(generate, "--json ", words), before);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? json::parse(outcome.out)["generated"] : json();
  };
  json one = ids("--prompt 'line 5'"), chat = ids("--chat --prompt 'line 5'");
  EXPECT_NE(one, chat);
  write_file(folder.path("p.txt"), "line 5\n");
  write_file(folder.path("p.jsonl"),
             "\"line 5\"\n\n{\"prompt\": \"line 5\"}\n{\"messages\": [{\"role\": \"user\", "
             "\"content\": \"line 5\"}]}\n");
  EXPECT_EQ(ids("--prompt-file p.txt"), one);
  EXPECT_EQ(ids("", "echo 'line 5' |"), one);
  EXPECT_EQ(ids("--prompt -", "printf 'line 5' |"), one);
  EXPECT_EQ(ids("--chat --prompt-file p.jsonl"), json({chat[0], chat[0], chat[0]}));
  Outcome bad = bevatron(folder, concat(generate, "--prompt-file p.jsonl"));
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("p.jsonl:4: has messages; give --chat"));
  bad = bevatron(folder, generate);
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--prompt: is missing"));
  bad = bevatron(folder, generate, ": |");
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("standard input: the text gives no token"));
}

TEST(FirstHour, SpecialTokensAreHiddenUnlessAskedFor) {
  TempFolder folder;
  write_conversations(folder);
  ASSERT_EQ(bevatron(folder, tiny_sft("--train-iters 40 --export-hf out")).code, 0);
  // The token that ends the answer counts too.
  const std::string answer = "generate --hf-model out --chat --prompt 'say b' ";
  EXPECT_EQ(bevatron(folder, answer).out, "bbb\n");
  EXPECT_EQ(bevatron(folder, answer + "--show-special-tokens").out, "bbb<|im_end|>\n");
  const std::string generate = answer + "--ignore-eos --max-new-tokens 5 ";
  EXPECT_THAT(bevatron(folder, generate).out, Not(HasSubstr("<|im_end|>")));
  EXPECT_THAT(bevatron(folder, generate + "--json").out, Not(HasSubstr("<|im_end|>")));
  EXPECT_THAT(bevatron(folder, generate + "--show-special-tokens").out, HasSubstr("bbb<|im_end|>"));
}

TEST(FirstHour, AChatOnATerminalStreamsAndCtrlCEndsTheAnswerOnly) {
  TempFolder folder;
  write_chatterbox(folder);
  Terminal chat(folder, concat(BEV_BINARY_DIR,
                               "/bevatron generate --hf-model out --chat --ignore-eos "
                               "--max-new-tokens 1000000 --tp 2"));
  ASSERT_TRUE(chat.wait_for("> ")) << chat.output();
  chat.type("\x03");  // at the prompt
  ASSERT_TRUE(chat.wait_for("/exit")) << chat.output();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.output();
  chat.type("say a\n");
  ASSERT_TRUE(chat.wait_for("say a\r\n"));
  EXPECT_TRUE(chat.wait_for_bytes(20)) << "nothing is streamed";
  chat.type("\x03");
  ASSERT_TRUE(chat.wait_for("\n> ")) << chat.output();
  chat.type("/clear\n");
  ASSERT_TRUE(chat.wait_for("forgotten")) << chat.output();
  chat.type("/exit\n");
  EXPECT_EQ(chat.finish(), 0) << chat.output();

  Terminal other(folder, concat(BEV_BINARY_DIR, "/bevatron generate --hf-model out --chat"));
  ASSERT_TRUE(other.wait_for("> ")) << other.output();
  other.type("\x04");
  EXPECT_EQ(other.finish(), 0) << other.output();
}

TEST(FirstHour, AChatRemembersItsTurns) {
  TempFolder folder;
  write_chatterbox(folder);
  write_file(folder.path("echo.jinja"),
             "{% for m in messages %}{{ m.role[0] }}{{ m.content }}<|im_end|>{% endfor %}"
             "{% if messages|length > 3 %}{{ raise_exception('four messages') }}{% endif %}");
  const std::string chat =
      "generate --hf-model out --chat --chat-template echo.jinja --max-new-tokens 3 --ignore-eos";
  Outcome outcome = bevatron(folder, chat, "printf 'one\\ntwo\\n\\nthree\\n/clear\\nfour' |");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("four messages"));  // the third turn is refused, no end
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 3) << outcome.out;
  outcome = bevatron(folder, chat + " --json");
  EXPECT_EQ(outcome.code, 2);
}

TEST(FirstHour, HelpFindsFlagsModelsAndLayouts) {
  TempFolder folder;
  std::string train = bevatron(folder, "help train").out;
  std::size_t usual = train.find("\nusual flags:\n"), model = train.find("\nmodel:\n");
  ASSERT_LT(usual, model);
  std::string first = train.substr(usual, model - usual);
  for (const char* flag : {"--preset", "--text", "--lr", "--train-iters", "--save", "--bf16"}) {
    EXPECT_THAT(first, HasSubstr(concat("\n  ", flag)));
  }
  EXPECT_THAT(bevatron(folder, "help --lr").out, HasSubstr("taken by train, rl, verify, schedule"));
  EXPECT_EQ(bevatron(folder, "help lr").out, bevatron(folder, "help --lr").out);
  EXPECT_THAT(bevatron(folder, "help tp").out, HasSubstr("--tensor-model-parallel-size, --tp"));
  EXPECT_THAT(bevatron(folder, "help no_causal").out, HasSubstr("--causal, --no-causal"));
  EXPECT_THAT(bevatron(folder, "help learning_rate").out, HasSubstr("here it is --lr"));
  EXPECT_THAT(bevatron(folder, "help --use-mcore-models").out, HasSubstr("is not needed"));
  EXPECT_THAT(bevatron(folder, "help train mixture of experts").out,
              testing::AllOf(HasSubstr("--num-experts"), Not(HasSubstr("--lr "))));
  EXPECT_THAT(bevatron(folder, "help --search WARMUP fraction").out,
              testing::AllOf(HasSubstr("--lr-warmup-fraction"), Not(HasSubstr("--save "))));
  EXPECT_THAT(bevatron(folder, "help checkpoint").out,
              testing::AllOf(HasSubstr("checkpoint diff"), Not(HasSubstr("train"))));
  EXPECT_EQ(bevatron(folder, "help --search xyzzy").code, 2);
  EXPECT_THAT(bevatron(folder, "help xyzzy").err, HasSubstr("no command and no flag"));
  EXPECT_THAT(bevatron(folder, "help trian").err, HasSubstr("did you mean train?"));
  EXPECT_THAT(bevatron(folder, "help presets").out, HasSubstr("llama3.2-1b"));
  EXPECT_THAT(bevatron(folder, "help layouts").out, HasSubstr("tp2sp,pp2 dp4zero3"));
}

TEST(FirstHour, ColoursAreForTerminalsThatWantThem) {
  TempFolder folder;
  const std::string program = concat(BEV_BINARY_DIR, "/bevatron ");
  EXPECT_THAT(bevatron(folder, "help generate").out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(bevatron(folder, "trian").err, testing::StartsWith("error: "));
  Terminal help(folder, program + "help generate");
  EXPECT_EQ(help.finish(), 0);
  EXPECT_THAT(help.output(), HasSubstr("\x1b[36m--prompt\x1b[0m"));
  Terminal error(folder, program + "trian");
  EXPECT_EQ(error.finish(), 2);
  EXPECT_THAT(error.output(), HasSubstr("\x1b[1;31merror:\x1b[0m 'trian'"));
  Terminal plain(folder, "env NO_COLOR=1 " + program + "trian");
  EXPECT_EQ(plain.finish(), 2);
  EXPECT_THAT(plain.output(), HasSubstr("error: 'trian'"));
}

TEST(FirstHour, ManualPageAndCompletionFollowTheFlags) {
  TempFolder folder;
  Outcome man = bevatron(folder, "help --man");
  EXPECT_THAT(man.out, testing::AllOf(testing::StartsWith(".TH BEVATRON 1"),
                                      HasSubstr("\\fB\\-\\-lr\\fR"), HasSubstr(".SS optimizer")));
  for (const std::string& line : split(man.out, '\n')) {
    bool request = line.starts_with('.') || line.starts_with('\'');
    EXPECT_TRUE(!request || (line.size() > 2 && line[1] >= 'A' && line[1] <= 'z')) << line;
  }
  auto complete = [&](const std::string& words) {
    return run_shell(folder, concat("bash -c 'source <(", BEV_BINARY_DIR,
                                    "/bevatron completion bash); "
                                    "COMP_WORDS=(bevatron ",
                                    words,
                                    "); COMP_CWORD=$((${#COMP_WORDS[@]} - "
                                    "1)); _bevatron; echo \"${COMPREPLY[@]}\"'"))
        .out;
  };
  EXPECT_EQ(run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron completion bash | bash -n")).code,
            0);
  EXPECT_EQ(complete("tr"), "train\n");
  EXPECT_EQ(complete("train --lr-warmup-f"), "--lr-warmup-fraction\n");
  EXPECT_EQ(complete("train --nan-policy s"), "stop skip\n");
  EXPECT_EQ(complete("checkpoint d"), "diff\n");
  EXPECT_EQ(complete("checkpoint diff --fol"), "--folders\n");
  EXPECT_THAT(complete("train --preset llama3.2-"), HasSubstr("llama3.2-1b"));
  write_file(folder.path("book.txt"), "");
  EXPECT_EQ(complete("train --text bo"), "book.txt\n");
  EXPECT_THAT(bevatron(folder, "completion fish").out,
              HasSubstr("-n '__bevatron_has train' -l lr -r -d 'highest learning rate'"));
  EXPECT_THAT(bevatron(folder, "completion zsh").out, testing::StartsWith("#compdef bevatron\n"));
  EXPECT_EQ(bevatron(folder, "completion tcsh").code, 2);
  EXPECT_EQ(bevatron(folder, "completion").code, 2);
}

}  // namespace
}  // namespace bev::first_hour
