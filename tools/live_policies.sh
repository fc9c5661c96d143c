#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Policies on a live server: the same requests to one generated model with adapters of ranks 8 to 128, of which memory holds a
# part. The first setting is the baseline; the loads are parts of its capacity, which is what it answers of a burst. A server
# is started anew for every run; settings take turns, and medians of the rounds are printed.
#
#   tools/live_policies.sh --lengths CSV [--loralei BIN] [--shape S] [--quant Q] [--adapters N] [--part P] [--factor F]
#     [--burst N] [--seconds S] [--loads "P ..."] [--rounds N] [--threads N] [--kv BYTES] [--max-num-seqs N] [--work DIR]
#     [-- "OPTIONS OF serve" ...]
#
# A setting with `--memory-sharing joint` gets the same budget as the others, and shares it as it likes.
set -euo pipefail

loralei=build/loralei
lengths=
shape=llama-tiny
quant=q8_0
adapters=200
part=0.25
factor=0.1
burst=600
seconds=40
loads="0.7 0.9 1.03"
rounds=3
threads=1
kv=64000000
max_seqs=32
work=
settings=("--adapter-cache none" "--adapter-cache lru" "--adapter-cache chameleon --schedule-policy wrs" "--adapter-cache density"
  "--adapter-cache density --schedule-policy sjf" "--memory-sharing joint --adapter-cache density")
while [ $# -gt 0 ]; do
  case $1 in
    --lengths) lengths=$2; shift 2 ;;
    --loralei) loralei=$2; shift 2 ;;
    --shape) shape=$2; shift 2 ;;
    --quant) quant=$2; shift 2 ;;
    --adapters) adapters=$2; shift 2 ;;
    --part) part=$2; shift 2 ;;
    --factor) factor=$2; shift 2 ;;
    --burst) burst=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --loads) loads=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --threads) threads=$2; shift 2 ;;
    --kv) kv=$2; shift 2 ;;
    --max-num-seqs) max_seqs=$2; shift 2 ;;
    --work) work=$2; shift 2 ;;
    --) shift; settings=("$@"); break ;;
    *) sed -n '3,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ -n "$lengths" ] || { echo "--lengths CSV: a file with the columns ContextTokens and GeneratedTokens" >&2; exit 2; }
if [ -z "$work" ]; then
  work=$(mktemp -d)
  remove=$work
fi
server=
stop() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null || true; }
  server=
}
finish() {
  stop
  [ -z "${remove:-}" ] || rm -rf "$remove"
}
trap finish EXIT

# Adapters under the names that `loralei workload --adapters powerlaw:N` gives them: a fifth of each rank.
mkdir -p "$work/cache"
if [ ! -d "$work/adapters" ]; then
  mkdir -p "$work/adapters"
  each=$((adapters / 5))
  index=0
  for rank in 8 16 32 64 128; do
    "$loralei" bench generate --shape "$shape" --quant "$quant" --rank "$rank" --adapters "$each" --cache-dir "$work/cache" >"$work/paths"
    while read -r folder; do
      cp -rl "$folder" "$work/adapters/$(printf 'a%03d' "$index")"
      index=$((index + 1))
    done < <(tail -n +2 "$work/paths")
  done
  head -1 "$work/paths" >"$work/model"
fi
model=$(cat "$work/model")
adapter_bytes=$(du -sb "$work/adapters" | awk -v part="$part" '{printf "%.0f", $1 * part}')
budget=$(($(stat -Lc %s "$model") + adapter_bytes + kv + 600000000))

# A server of SETTING; sets `server` and `url`.
start() {
  local port=$((20000 + RANDOM % 20000)) words i
  read -ra words <<<"$1"
  case $1 in
    *joint*) ;;
    *) words+=(--kv-cache-memory "$kv" --adapter-memory "$adapter_bytes") ;;
  esac
  url=http://127.0.0.1:$port
  "$loralei" serve "$model" --adapter-dir "$work/adapters" --port "$port" --threads "$threads" --max-model-len 4096 \
    --max-num-seqs "$max_seqs" --max-queued 100000 --memory-budget "$budget" "${words[@]}" >"$work/serve.log" 2>&1 &
  server=$!
  for ((i = 0; i < 3000; ++i)); do
    if curl -sf "$url/ready" >/dev/null 2>&1; then return; fi
    kill -0 "$server" 2>/dev/null || { cat "$work/serve.log" >&2; exit 1; }
    sleep 0.02
  done
  echo "the server did not come up: $work/serve.log" >&2
  exit 1
}
# Rows of `bench trace`: SETTING WORKLOAD
replay() {
  start "$1"
  "$loralei" bench trace --url "$url" --workload "$2" --json "$work/report.json" >/dev/null 2>"$work/trace.log" ||
    { cat "$work/trace.log" >&2; exit 1; }
  stop
}
value() { jq -r --arg name "$1" '[.rows[] | select(.name == $name) | .value][0] // 0' "$work/report.json"; }
make_workload() {  # ARRIVALS SEED FILE OPTIONS...
  local arrivals=$1 seed=$2 file=$3
  shift 3
  "$loralei" workload --arrivals "$arrivals" --lengths "draw:$lengths" --length-scale "$factor" --adapters "powerlaw:$adapters" \
    --seed "$seed" -o "$file" "$@" >/dev/null 2>&1
}

make_workload poisson:100000 1 "$work/burst.jsonl" --count "$burst"
replay "${settings[0]}" "$work/burst.jsonl"
[ "$(value trace.all.failed)" = 0 ] || { cat "$work/trace.log" >&2; exit 1; }
capacity=$(value trace.requests_per_s)
echo "capacity of \`${settings[0]}\`: $(printf '%.2f' "$capacity") requests/s; adapters $((adapter_bytes / 1000000)) MB of $(du -sm "$work/adapters" | cut -f1), KV $((kv / 1000000)) MB"
: >"$work/figures"
for load in $loads; do
  rate=$(awk -v c="$capacity" -v l="$load" 'BEGIN {printf "%.4f", c * l}')
  for round in $(seq "$rounds"); do
    file=$work/$load-$round.jsonl
    make_workload "poisson:$rate" "$((round + 1))" "$file" --seconds "$seconds"
    for index in "${!settings[@]}"; do
      replay "${settings[$index]}" "$file"
      echo "$load $index $(value trace.all.first_token.mean_ms) $(value trace.all.first_token.p50_ms) $(value trace.all.first_token.p99_ms)" \
        "$(value trace.between_tokens.p99_ms) $(value trace.all.failed) $(value trace.adapter_loads) $(value trace.requests_per_s)" >>"$work/figures"
    done
  done
done
echo "| load | setting | mean ms | P50 ms | P99 ms | mean | P99 | P99 between tokens ms | failed | loads | requests/s |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
for load in $loads; do
  first=
  for index in "${!settings[@]}"; do
    line=$(for column in 3 4 5 6 7 8 9; do
      awk -v l="$load" -v i="$index" -v c="$column" '$1 == l && $2 == i {print $c}' "$work/figures" | sort -g | sed -n "$(((rounds + 1) / 2))p"
    done | tr '\n' ' ')
    first=${first:-$line}
    echo "$line $first" | awk -v load="$load" -v setting="${settings[$index]}" '
      {printf "| %s | `%s` | %.0f | %.0f | %.0f | %+.1f %% | %+.1f %% | %.0f | %d | %d | %.2f |\n", load, setting, $1, $2, $3,
              100 * ($1 / $8 - 1), 100 * ($3 / $10 - 1), $4, $5, $6, $7}'
  done
done
