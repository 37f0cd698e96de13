#!/usr/bin/env bash
# test_clients.sh [WORDS...]: what other programs see of `bevatron serve`: the official openai client, curl, lm-eval's requests,
# Megatron's client and Chromium. Installs the packages and a Python environment for them (build/clients-venv), quickly when all is
# present. WORDS go to tests/clients/run.py; the last line is "N passed, N failed". What cannot be installed is a failure, or is
# skipped with BEV_CLIENTS_MAY_SKIP=1, for machines without a network.
set -uo pipefail
cd "$(dirname "$0")/.."

packages=(python3-venv curl chromium chromium-driver openssl)
clients=tests/clients
venv=build/clients-venv

# give_up WHY: ends the test, unless it may go on without.
give_up() {
  [[ ${BEV_CLIENTS_MAY_SKIP:-} != 1 ]] || { echo "clients: $1; some checks are skipped"; return 0; }
  echo "FAIL  install: $1"
  echo "0 passed, 1 failed"
  exit 1
}

# The environment is made anew when a version changes.
make_venv() {
  local wanted
  wanted=$(/usr/bin/python3 --version; cat "$clients/requirements.txt" "$clients/constraints.txt")
  [[ -x $venv/bin/python && $(cat "$venv/wanted.txt" 2>/dev/null) == "$wanted" ]] && return 0
  echo "clients: installing $(grep -v '^#' "$clients/requirements.txt" | xargs) into $venv"
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  /usr/bin/python3 -m venv "$venv" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
      --requirement "$clients/requirements.txt" --constraint "$clients/constraints.txt" &&
    printf '%s\n' "$wanted" >"$venv/wanted.txt"
}

tools/setup.sh "${packages[@]}" || give_up "these packages cannot be installed: ${packages[*]}"
make_venv || give_up "the openai client cannot be installed (is there a package index?)"
python=$venv/bin/python
[[ -x $python ]] || python=/usr/bin/python3
"$python" -B "$clients/run.py" "$@"
