#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# --memory-sharing joint beside fixed shares of the same memory, on three simulated workloads: many prefixes and few adapters,
# few prefixes and many adapters, and both in turn. Mean and P99 time to the first token, medians of the seeds.
#
#   tools/memory_sharing.sh --profile FILE [--loralei BIN] [--seconds S] [--seeds N] [--memory BYTES] [--rate R]
#     [--documents N] [--adapters N] [--rank R] [--lengths IN:OUT] [-- "OPTIONS OF simulate" ...]
set -euo pipefail

loralei=build/loralei
profile=
seconds=1200
seeds=3
memory=3000000000
rate=0.3
documents=120
adapters=28
rank=64
lengths=30:10
settings=("--memory-sharing fixed --adapter-cache lru" "--memory-sharing fixed --adapter-cache density"
  "--memory-sharing joint --adapter-cache lru" "--memory-sharing joint --adapter-cache density")
while [ $# -gt 0 ]; do
  case $1 in
    --profile) profile=$2; shift 2 ;;
    --loralei) loralei=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --seeds) seeds=$2; shift 2 ;;
    --memory) memory=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    --documents) documents=$2; shift 2 ;;
    --adapters) adapters=$2; shift 2 ;;
    --rank) rank=$2; shift 2 ;;
    --lengths) lengths=$2; shift 2 ;;
    --) shift; settings=("$@"); break ;;
    *) sed -n '3,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ -n "$profile" ] || { echo "--profile FILE: of loralei profile" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

phase() {  # DOCUMENTS ADAPTERS SEED
  "$loralei" workload --arrivals "poisson:$rate" --lengths "fixed:$lengths" --adapters "uniform:$2:$rank" \
    --prefixes "documents:$1:200:0.5" --seconds "$seconds" --seed "$3"
}
# One behind the other, four times in turn.
in_turn() {  # SEED
  local k
  for k in 0 1 2 3; do
    if ((k % 2 == 0)); then phase "$documents" 4 "$1$k"; else phase 2 "$adapters" "$1$k"; fi |
      awk -v shift="$((k * seconds))" '{t = $2; sub(",", "", t); sub(/"t": [^,]*/, sprintf("\"t\": %.9f", t + shift)); print}'
  done
}
half=$((memory / 2))
echo "| workload | setting | mean ms | P99 ms | against the first |"
echo "|---|---|---|---|---|"
for workload in prefixes adapters "in turn"; do
  first=
  for setting in "${settings[@]}"; do
    read -ra words <<<"$setting"
    # Floors of a joint memory: a part in eight for each, so that it may go where it is wanted.
    case $setting in
      *joint*) words+=(--memory-budget "$memory" --kv-cache-memory "$((memory / 8))" --adapter-memory "$((memory / 8))") ;;
      *) words+=(--kv-cache-memory "$half" --adapter-memory "$half") ;;
    esac
    for seed in $(seq "$seeds"); do
      file="$work/$workload-$seed.jsonl"
      [ -f "$file" ] || case $workload in
        prefixes) phase "$documents" 4 "$seed" >"$file" ;;
        adapters) phase 2 "$adapters" "$seed" >"$file" ;;
        *) in_turn "$seed" >"$file" ;;
      esac
      "$loralei" simulate --profile "$profile" --workload "$file" --max-model-len 1024 "${words[@]}" 2>/dev/null |
        awk '$1 == "simulate.all.first_token.mean_ms" {mean = $2} $1 == "simulate.all.first_token.p99_ms" {p99 = $2}
             END {print mean, p99}'
    done >"$work/figures"
    read -r mean p99 < <(awk '{m[NR] = $1 + 0; p[NR] = $2 + 0}
      function middle(a,   k, j, t) {
        for (k = 1; k <= NR; k++) for (j = k + 1; j <= NR; j++) if (a[j] < a[k]) {t = a[k]; a[k] = a[j]; a[j] = t}
        return a[int((NR + 1) / 2)]}
      END {print middle(m), middle(p)}' "$work/figures")
    first=${first:-$mean}
    awk -v w="$workload" -v s="$setting" -v m="$mean" -v p="$p99" -v f="$first" \
      'BEGIN {printf "| %s | `%s` | %.0f | %.0f | %+.1f %% |\n", w, s, m, p, (m / f - 1) * 100}'
  done
done
