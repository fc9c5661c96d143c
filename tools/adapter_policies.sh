#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Policies beside the adapter-cache paper's baseline (tools/adapter_baseline.sh found factor and objective): the same simulated
# A40, model, adapters and trace. For each policy the time to the first token at some rates, its change against the baseline,
# and the highest load whose P99 is within the objective.
#
#   tools/adapter_policies.sh --lengths CSV [--loralei BIN] [--seconds S] [--seeds N] [--factor F] [--objective MS]
#     [--adapters SPEC] [--arrivals SPEC] [--search no] [--profile P] [--rates "R ..."] [-- "OPTIONS OF simulate" ...]
#
# SPEC of arrivals has RATE where each rate is put (poisson:RATE). `--search no` leaves the highest load out.
set -euo pipefail

loralei=build/loralei
lengths=
seconds=1200
seeds=3
factor=0.2012
objective=456
adapters=powerlaw:100
profile=a40-llama2-7b
arrivals=poisson:RATE
search=yes
rates="6 8 9"
policies=("--adapter-cache lru" "--adapter-cache fair-share" "--adapter-cache chameleon" "--adapter-cache density"
  "--adapter-cache none --schedule-policy sjf" "--adapter-cache none --schedule-policy wrs"
  "--adapter-cache chameleon --schedule-policy sjf" "--adapter-cache chameleon --schedule-policy wrs"
  "--adapter-cache density --schedule-policy wrs")
while [ $# -gt 0 ]; do
  case $1 in
    --lengths) lengths=$2; shift 2 ;;
    --loralei) loralei=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --seeds) seeds=$2; shift 2 ;;
    --factor) factor=$2; shift 2 ;;
    --objective) objective=$2; shift 2 ;;
    --adapters) adapters=$2; shift 2 ;;
    --profile) profile=$2; shift 2 ;;
    --arrivals) arrivals=$2; shift 2 ;;
    --search) search=$2; shift 2 ;;
    --rates) rates=$2; shift 2 ;;
    --) shift; policies=("$@"); break ;;
    *) sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ -n "$lengths" ] || { echo "--lengths CSV: a file with the columns ContextTokens and GeneratedTokens" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# MEAN P50 P99 BETWEEN of the first token and between tokens, in milliseconds: RATE POLICY...; medians of the seeds.
measure() {
  local rate=$1 seed file
  shift
  for seed in $(seq "$seeds"); do
    file=$work/$rate-$seed.jsonl
    [ -f "$file" ] || "$loralei" workload --arrivals "${arrivals/RATE/$rate}" --lengths "draw:$lengths" --length-scale "$factor" \
      --adapters "$adapters" --seconds "$seconds" --seed "$seed" -o "$file" >/dev/null 2>&1
    "$loralei" simulate --profile "$profile" --workload "$file" --max-num-seqs 256 "$@" 2>/dev/null |
      awk '$1 == "simulate.all.first_token.mean_ms" {mean = $2} $1 == "simulate.all.first_token.p50_ms" {p50 = $2}
           $1 == "simulate.all.first_token.p99_ms" {p99 = $2} $1 == "simulate.between_tokens.p99_ms" {between = $2}
           END {print mean, p50, p99, between}'
  done | awk '{for (i = 1; i <= 4; i++) v[i, NR] = $i}
              function middle(i,   n, k, j, t, a) {
                n = NR; for (k = 1; k <= n; k++) a[k] = v[i, k] + 0
                for (k = 1; k <= n; k++) for (j = k + 1; j <= n; j++) if (a[j] < a[k]) {t = a[k]; a[k] = a[j]; a[j] = t}
                return a[int((n + 1) / 2)]}
              END {print middle(1), middle(2), middle(3), middle(4)}'
}
# The highest rate within the objective, to 2 %: POLICY...
load_within() {
  local low=4 high=32 middle _ p99
  for _ in 1 2 3 4 5 6 7; do
    middle=$(awk -v a="$low" -v b="$high" 'BEGIN {printf "%.2f", sqrt(a * b)}')
    read -r _ _ p99 _ < <(measure "$middle" "$@")
    if awk -v p="$p99" -v goal="$objective" 'BEGIN {exit !(p > goal)}'; then high=$middle; else low=$middle; fi
  done
  echo "$low"
}
declare -A base
base_load=
echo "| policy | requests/s | mean ms | P50 ms | P99 ms | P50 | P99 | P99 between tokens ms | load within $objective ms |"
echo "|---|---|---|---|---|---|---|---|---|"
for policy in "--adapter-cache none" "${policies[@]}"; do
  read -ra words <<<"$policy"
  load=
  [ "$search" = no ] || load=$(load_within "${words[@]}")
  base_load=${base_load:-$load}
  for rate in $rates; do
    line=$(measure "$rate" "${words[@]}")
    base[$rate]=${base[$rate]:-$line}
    echo "$line ${base[$rate]}" | awk -v policy="$policy" -v rate="$rate" -v load="$load" -v base="$base_load" '
      {found = load == "" ? "" : sprintf("%.2f (%.2f times)", load, load / base)
       printf "| `%s` | %s | %.0f | %.0f | %.0f | %+.1f %% | %+.1f %% | %.0f | %s |\n", policy, rate, $1, $2, $3,
              100 * ($2 / $6 - 1), 100 * ($3 / $7 - 1), $4, found}'
  done
done
