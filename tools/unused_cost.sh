#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/unused_cost.sh [PERCENT]: counts the instructions of an engine that could start cold requests early, with a helper
# beside it, and of one that could not, over the same steps with all adapters on the device (bench coldstart --unused).
# Fails where the first has more by PERCENT (0.5). Instructions do not depend on what else the machine does; needs valgrind.
set -euo pipefail
cd "$(dirname "$0")/.."
percent=${1:-0.5}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

count() {  # of so many pairs, by thread
  valgrind --tool=callgrind --separate-threads=yes --callgrind-out-file="$folder/pairs$1" build/loralei bench coldstart \
    --shape llama-tiny --quant q8_0 --unused --tax-pairs "$1" --batch 1 --threads 1 --ranks 16 --foreign-cpu 100 \
    --cache-dir "$folder" >"$folder/log$1" 2>&1 || { cat "$folder/log$1" >&2; exit 1; }
}
count 1
count 5
# The start is the same in both; the two threads that computed most are the engines', the first one could start early.
for file in "$folder"/pairs5-*; do
  thread=${file##*-}
  echo "$thread $(grep -a '^totals:' "$file" | cut -d' ' -f2) $(grep -a '^totals:' "$folder/pairs1-$thread" | cut -d' ' -f2)"
done | awk '{ print $1, $2 - $3 }' | sort -k2,2nr | head -2 | sort -k1,1n | awk -v most="$percent" '
  { steps[NR] = $2 }
  END {
    if (NR != 2 || steps[2] < 1e6) { print "the engines were not found"; exit 1 }
    over = 100 * (steps[1] - steps[2]) / steps[2]
    printf "instructions of 4 x (32 decode steps and a prompt of 128): early starts %.0f, without %.0f, over %.4f %% (most: %s)\n",
      steps[1], steps[2], over, most
    exit over > most
  }'
