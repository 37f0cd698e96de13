#!/usr/bin/env bash
# Trains a language model of 124M parameters on the text of this machine (documentation, manual pages, licences, headers
# and sources of installed packages), then tunes it: conversations about packages and commands (SFT), and which of two
# answers is right (DPO). Prints what the model says before and after each. Needs no network; about 8 minutes of an H200.
# usage: bench/house_model.sh [--tiny] [FOLDER]   (default: house-model; its subfolders corpus, tokenizer, base, chat, dpo)
# --tiny: a small model, little text and few iterations, on a CPU in a minute or two.
# BEVATRON: the program (build/bevatron); BEV_MINUTES: of the first training (6).
set -euo pipefail
tiny=0
if [[ ${1:-} == --tiny ]]; then
  tiny=1
  shift
fi
program=$(realpath "${BEVATRON:-build/bevatron}")
work=${1:-house-model}
mkdir -p "$work"
cd "$work"

if ((tiny)); then
  megabytes=2 rows=400 vocabulary=2000 every=37
  device=(--device cpu)
  model=(--family llama --num-layers 2 --hidden-size 64 --num-attention-heads 4)
  length=(--seq-length 128)
  train=(--train-iters 30 --micro-batch-size 4 --lr 3e-3)
  sft=(--train-iters 20 --micro-batch-size 2 --lr 2e-3)
  dpo=(--train-iters 10 --micro-batch-size 4 --global-batch-size 8 --lr 3e-4)
else
  megabytes=600 rows=20000 vocabulary=32768 every=1
  device=(--bf16)
  model=(--preset gpt2-124m)
  length=(--seq-length 1024)
  train=(--train-iters 4000 --exit-duration-in-mins "${BEV_MINUTES:-6}" --micro-batch-size 32
         --global-batch-size 256 --lr 6e-4 --min-lr 6e-5 --lr-warmup-iters 100)
  sft=(--epochs 1 --micro-batch-size 16 --global-batch-size 32 --lr 5e-5 --lr-warmup-iters 10)
  dpo=(--epochs 1 --micro-batch-size 32 --global-batch-size 64 --lr 2e-6 --lr-warmup-iters 10)
fi

say() { printf '\n== %s\n' "$*" >&2; }

# Text files of folders, until there are enough; one document per file, the smaller ones first. Manual pages are without
# their markup.
collect() {
  local most=$((megabytes << 20)) size=0 number=0 path
  rm -rf corpus
  mkdir corpus
  find /usr/share/common-licenses /usr/share/doc /usr/share/man/man* /usr/share/perl /usr/lib/python3* /usr/include \
    /usr/share/vim /usr/src -type f -size +1k -size -256k \
    \( -name '*.[1-9]' -o -name '*.[1-9].gz' -o -name '*.txt' -o -name '*.txt.gz' -o -name '*.md' -o -name '*.rst' \
    -o -name 'README*' -o -name 'copyright' -o -name 'NEWS*' -o -name 'changelog*' -o -name '*.html' -o -name '*.py' \
    -o -name '*.p[lm]' -o -name '*.h' -o -name '*.c' -o -path '*common-licenses*' \) -print0 2>/dev/null |
    xargs -0 stat --printf '%s\t%n\n' | sort -n -k1,1 -k2,2 | cut -f2 | awk -v n=$every 'NR % n == 0' > files
  while IFS= read -r path && ((size < most)); do
    local text=corpus/$((number++)).txt
    case $path in
    *.gz) gzip -dc "$path" ;;
    *) cat "$path" ;;
    esac > "$text" 2>/dev/null || true
    case $path in
    */man/*) sed -i -E "/^[.']\\\\\"/d; s/^\.(SH|SS) /\n/; s/^\.[A-Za-z]{1,2} ?//; s/\\\\f.//g; s/\\\\-/-/g; s/\\\\&//g" "$text" ;;
    esac
    iconv -f UTF-8 -t UTF-8 "$text" > /dev/null 2>&1 || { rm "$text"; continue; }
    size=$((size + $(stat -c %s "$text")))
  done < files
  say "corpus: $(find corpus -type f | wc -l) documents, $((size >> 10)) KiB"
}

# Names and one-line descriptions of installed packages, and of manual pages as `name - what it is`.
descriptions() {
  awk '/^Package: /{name = $2} /^Description: /{sub(/^Description: /, ""); print "package\t" name "\t" $0}' \
    /var/lib/dpkg/status 2>/dev/null || true
  { find /usr/share/man/man1 /usr/share/man/man8 -name '*.gz' 2>/dev/null || true; } | sort |
    awk -v n=$every 'NR % n == 0' | while read -r page; do
    { gzip -dc "$page" 2>/dev/null || true; } | awk '/^\.SH "?NAME/{next_line = 1; next} next_line{gsub(/\\f.|\\/, ""); print; exit}' |
      awk -F ' -+ ' 'NF == 2 && $1 ~ /^[a-z0-9_.+-]+$/ && length($2) > 8 {print "command\t" $1 "\t" $2}'
  done
}

# Conversations, and pairs whose rejected answer is that to another question.
questions() {
  descriptions | LC_ALL=C grep -v '[^ -~	]' | awk '!seen[$2]++' | awk 'BEGIN{srand(1)} {print rand() "\t" $0}' | sort -n |
    cut -f2- | awk -v n="$rows" 'NR <= n' > described
  awk -F '\t' '
    function text(t) {gsub(/\\/, "\\\\", t); gsub(/"/, "\\\"", t); return "\"" t "\""}
    function turn(role, t) {return "{\"role\": \"" role "\", \"content\": " text(t) "}"}
    {
      ask = "What is the " $1 " " $2 "?"
      answer = $2 " is: " $3 "."
      print "{\"messages\": [" turn("user", ask) ", " turn("assistant", answer) "]}" > "chats.jsonl"
      if (NR > 1)
        print "{\"prompt\": [" turn("user", ask) "], \"chosen\": [" turn("assistant", answer) "], \"rejected\": [" \
          turn("assistant", last) "]}" > "pairs.jsonl"
      last = answer
    }' described
  say "$(wc -l < chats.jsonl) conversations, $(wc -l < pairs.jsonl) pairs"
}

bevatron() { "$program" "$@"; }

# What a model says, greedily.
samples() {
  say "$1"
  bevatron generate --hf-model "$2" "${device[@]}" --max-new-tokens 40 --temperature 0 --prompt "$3"
}
chats() {
  say "$1"
  awk 'NR <= 3' described | cut -f1,2 | while IFS=$'\t' read -r kind name; do
    bevatron generate --hf-model "$2" "${device[@]}" --max-new-tokens 40 --temperature 0 \
      --prompt "<|user|>What is the $kind $name?<|end|><|assistant|>"
  done
}

collect
questions
say "tokenizer"
bevatron tokenizer train --input corpus --vocab-size "$vocabulary" --output tokenizer \
  --special-tokens '<|endoftext|>' '<|user|>' '<|assistant|>' '<|end|>' > /dev/null
cat > tokenizer/chat_template.jinja <<'T'
{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}
T

say "training on the text of this machine"
bevatron train "${model[@]}" "${length[@]}" "${device[@]}" "${train[@]}" --text corpus --tokenizer tokenizer \
  --lr-decay-style cosine --log-interval 10 --metrics-out base.jsonl --export-hf base > base.json
samples "the model that was trained" base "This program is free software"
chats "the same, asked" base

say "SFT"
bevatron train --hf-model base "${length[@]}" "${device[@]}" "${sft[@]}" --sft-data chats.jsonl --lr-decay-style cosine \
  --log-interval 10 --metrics-out sft.jsonl --export-hf chat > sft.json
chats "after SFT" chat

say "DPO"
bevatron train --hf-model chat "${length[@]}" "${device[@]}" "${dpo[@]}" --objective dpo --data pairs.jsonl --beta 0.1 \
  --lr-decay-style cosine --log-interval 10 --metrics-out dpo.jsonl --export-hf dpo > dpo.json
chats "after DPO" dpo
say "in $work: base, chat and dpo are Hugging Face folders; *.jsonl the metrics"
