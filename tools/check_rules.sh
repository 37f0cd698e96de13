#!/usr/bin/env bash
# check_rules.sh [ROOT]: rules that a line of source can break. Prints every place, then fails.
set -uo pipefail
shopt -s lastpipe  # complain sets `broken` from the end of a pipe
cd "${1:-$(dirname "$0")/..}"

broken=0
# complain MESSAGE: reports each line of stdin, if there is one.
complain() {
  local places
  places=$(cat)
  [[ -n $places ]] || return 0
  printf '%s\n' "$places" | sed "s|^|rules: $1: |"
  broken=1
}
sources() { find "$@" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort; }
# code FOLDER...: all lines as FILE:LINE:TEXT, without line comments and string literals.
code() { sources "$@" | xargs -r grep -Hn '' | sed -E 's/"([^"\\]|\\.)*"/""/g; s://.*$::'; }
all_code=$(code src)
search() { grep -E "$1" <<<"$all_code"; }

# Ranks are objects: no state outside them.
search '\bthread_local\b' | complain "thread_local"
search ':\s*(inline +)?static +[^(]*(=|;|\{)' | grep -vE '\b(const|constexpr|constinit|static_assert)\b' |
  complain "mutable static"
search '^[^:]*:[0-9]+:(inline +|extern +|static +)*[A-Za-z_][A-Za-z0-9_:<>, ]*[ *&]+[A-Za-z_][A-Za-z0-9_]*( *=[^=].*|\{.*\})?;' |
  grep -vE ':((inline|static|extern) +)*(const|constexpr|using|typedef|return|namespace|template|struct|class|enum|union|friend|throw|goto|delete|else|case)\b' |
  complain "mutable global"

search '(\b(std::)?|::)(exit|_exit|_Exit|quick_exit)\(' | grep -vE '[.>](exit|_exit)\(' |
  grep -v '^src/app/end_process\.cpp:' | complain "exit("
search '\b(secure_)?getenv\b' | grep -v '^src/base/environment\.cpp:' | complain "getenv outside src/base/environment.cpp"

# What a thing can do is in its interface: nobody asks what it is.
search '\bdynamic_cast\b' | complain "dynamic_cast"
# Architectures are behind ModelStage (src/models/model.h). The tokenizer has a Decoder of its own.
grep -vE '^src/(models|tokenizer)/' <<<"$all_code" | grep -E '\bDecoder(Layer)?\b' |
  complain "an architecture's type outside src/models"
sources src | grep -v '^src/models/' | xargs -r grep -Hn '^#include "models/\(decoder\|layer\)\.h"' |
  complain "an architecture's header outside src/models"

sources src tests bench examples | grep -v '^src/backend/cuda/' |
  xargs -r grep -HnE '^ *# *include *[<"](cuda|cublas|cudnn|nccl|curand|cutlass|cute/|cub/|thrust/|nvtx|nvToolsExt|cooperative_groups)' |
  complain "CUDA include outside src/backend/cuda"
sources src | grep '\.h$' |
  xargs -r grep -HnE '^ *# *include *<((iostream|sstream|fstream|regex|filesystem|random|thread|mutex|chrono|functional)>|dnnl|omp\.h|fmt/|nlohmann/|yaml-cpp/)' |
  complain "heavy include in a header"

# What the server is made of stays within three sources of it; a test may include OpenSSL, to make certificates.
third_party='^ *# *include *[<"](boost|openssl)/'
sources src bench examples | grep -v '^src/serve/[^/]*\.cpp$' | xargs -r grep -HnE "$third_party" |
  complain "Boost or OpenSSL outside the sources of src/serve"
sources tests | grep -v '^tests/serve/[^/]*\.cpp$' | xargs -r grep -HnE "$third_party" |
  complain "Boost or OpenSSL outside the sources of tests/serve"
sources src/serve | xargs -r grep -lE "$third_party" | awk 'END { if (NR > 3) print "src/serve: " NR " sources" }' |
  complain "over 3 sources with Boost or OpenSSL"

# Division that rounds up has a name.
sources src tests bench examples | grep -v '^src/base/divide\.h$' |
  xargs -r grep -HnE '\+ *([A-Za-z_][A-Za-z0-9_.:>()-]*) - 1\) */ *\1|\+ (3\) / 4|7\) / 8|15\) / 16|31\) / 32|63\) / 64|127\) / 128|255\) / 256)' |
  complain "use ceil_div or round_up of base/divide.h"

# Comments and documents use the field's words (docs/glossary.md) and whole sentences. The generator is to be replaced.
words='\b([Bb]eside|[Ww]hoever|[Hh]imself|[Ww]eighed|[Pp]ut off)\b'
sources src tests bench examples | grep -v '^src/infer/generator\.' | xargs -r grep -HnE '(^|[[:space:];{}])//' |
  sed -E 's#^([^:]*:[0-9]+:)(.*[[:space:];{}])?//#\1//#' | grep -E "$words|:// *Of " |
  complain "a word outside of the field's language, or a comment that begins with Of"
find docs README.md bench -name '*.md' 2>/dev/null | grep -v '^docs/flags\.md$' | xargs -r grep -HnE "$words" |
  complain "a word outside of the field's language"

sources src tests bench examples | xargs -r wc -l | awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines" }' |
  complain "over 800 lines"
find src tests bench examples configs docs tools cmake .ci Makefile CMakeLists.txt CMakePresets.json -type f \
  -size -256k 2>/dev/null | grep -v '^tools/check.*\.sh$' |
  xargs -r grep -HnIE '(^|[^A-Za-z0-9_.:/})-])/(home|root|work|Users|mnt)/' | complain "absolute machine path"

exit "$broken"
