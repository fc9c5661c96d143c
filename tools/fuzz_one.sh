#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz_one.sh FUZZER CORPUS SECONDS: replays every seed, then fuzzes on for SECONDS in a scratch copy. New findings stay out of the tree;
# a crash prints its input's path and fails. Short runs repeat one sequence, so that a change is judged by what it changed; long ones
# (a minute and more) draw a new one each time, which libFuzzer prints.
set -euo pipefail
fuzzer=$1
corpus=$2
seconds=$3
if [ ! -d "$corpus" ] || [ -z "$(ls -A "$corpus")" ]; then
  echo "fuzz_one: $corpus holds no seeds" >&2
  exit 1
fi
scratch=$(mktemp -d)
findings=$(mktemp -d)
trap 'rm -rf "$scratch"; rmdir "$findings" 2>/dev/null || echo "inputs that failed: $findings"' EXIT
random_seed=20261120
if [ "$seconds" -ge 60 ]; then random_seed=0; fi
limits=(-timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 -artifact_prefix="$findings/")
"$fuzzer" "${limits[@]}" -runs=0 "$corpus" 2>&1 | tail -n 2
"$fuzzer" "${limits[@]}" -seed="$random_seed" -max_total_time="$seconds" -print_final_stats=1 "$scratch" "$corpus" 2>&1 | tail -n 12
