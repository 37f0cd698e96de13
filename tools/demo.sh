#!/usr/bin/env bash
# From text to a model that writes it: builds the program, trains a tokenizer and a small model on text that every Debian machine
# with a compiler has, shows its loss and a sample.
set -eu
cd "$(dirname "$0")/.."

# The best x86-64 level of this CPU above v2, as src/backend/cpu/cpu_kernels.cpp chooses it; nothing where there is none.
cpu_level() {
  local flags
  flags=" $(grep -m1 '^flags' /proc/cpuinfo || true) "
  has() { for flag; do [[ $flags == *" $flag "* ]] || return 1; done; }
  has avx2 fma bmi1 bmi2 f16c abm movbe || return 0
  if has avx512f avx512bw avx512cd avx512dq avx512vl; then echo v4; else echo v3; fi
}

# Where all of Bevatron has been configured (make build, make test) that program runs. Elsewhere it is built for this machine alone,
# which takes a fraction of the time: its CPU's kernels, and those of CUDA where there is a GPU.
if [[ -f build/build.ninja ]]; then
  cmake --build build --target bevatron
else
  cuda=OFF
  if [[ -e /dev/nvidia0 ]] || nvidia-smi -L >/dev/null 2>&1; then cuda=AUTO; fi
  level=$(cpu_level)
  cmake --preset demo -DBEV_CUDA="$cuda" -DBEV_CPU_LEVELS="v2${level:+;$level}" >/dev/null
  cmake --build build/demo --target bevatron
  ln -sfn demo/bevatron build/bevatron
fi

text=()
for path in /usr/share/common-licenses /usr/include/c++/12/bits; do
  [ -d "$path" ] && text+=("$path")
done
[ ${#text[@]} -gt 0 ] || { echo "demo: no text found on this machine" >&2; exit 1; }

step() { printf '\n== %s\n' "$1" >&2; }
mkdir -p demo

step "1. A tokenizer of 2048 tokens, learned from ${text[*]}"
build/bevatron tokenizer train --input "${text[@]}" --vocab-size 2048 --output demo/tokenizer

step "2. The text as token files"
build/bevatron preprocess --input "${text[@]}" --input-format text --txt-piece-bytes 16384 \
  --tokenizer demo/tokenizer --append-eod --output-prefix demo/corpus

step "3. A small Llama trains on them for about 90 seconds"
build/bevatron train --config configs/demo.yaml --data-path demo/corpus_text_document --tokenizer demo/tokenizer \
  --export-hf demo/model --metrics-out demo/metrics.jsonl --tensorboard-dir demo/tensorboard --loss-svg demo/loss.svg

step "4. A sample of the trained model"
prompt=$'  /**\n   *  @brief'
printf '%s' "$prompt"
build/bevatron generate --hf-model demo/model --prompt "$prompt" \
  --max-new-tokens 100 --temperature 0.5 --top-p 0.95 --seed 7
echo
echo "-----------------------------"
echo "demo/ holds the tokenizer, the token files, loss.svg, metrics.jsonl, tensorboard/ and the exported model/."
