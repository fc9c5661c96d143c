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
  exit 1
fi
# On a terminal ninja rewrites one line; elsewhere one line in twenty-five is enough.
export NINJA_STATUS='  [%f/%t, %es, %P] '
if [ -t 1 ]; then
  cmake --build --preset "$preset" ${1:+--target "$@"}
else
  cmake --build --preset "$preset" ${1:+--target "$@"} 2>&1 | awk '/^  \[/ { if (n++ % 25 == 0) { print; fflush() }; next } { print; fflush() }'
fi
