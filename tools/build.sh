#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh PRESET [cmake options...] -- [targets...]: configures a preset once and builds it, with ninja's progress and time left.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  options+=("$1")
  shift
done
if [ "${1:-}" = -- ]; then shift; fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
  cat "$log"
  echo "build: where a package is missing, tools/setup.sh (with tests: tools/setup.sh test) installs it" >&2
  exit 1
fi
# ninja tells steps done, steps in all and seconds gone; the time left follows. One rewritten line on a terminal, elsewhere one in twenty-five.
export NINJA_STATUS='@%f %t %e@ '
terminal=0
if [ -t 1 ]; then terminal=1; fi
cmake --build --preset "$preset" ${1:+--target "$@"} 2>&1 | awk -v terminal="$terminal" '
  /^@/ {
    split(substr($0, 2), word, "[ @]")
    left = word[1] > 0 ? int(word[3] * (word[2] - word[1]) / word[1]) : 0
    text = sprintf("  [%d/%d, about %d s left]", word[1], word[2], left)
    if (terminal) printf "\r\033[K%s", text
    else if (count++ % 25 == 0) print text
    fflush()
    drawn = terminal
    next
  }
  { if (drawn) { printf "\n"; drawn = 0 } print; fflush() }
  END { if (drawn) printf "\n" }'
