#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ten thousand adapters below one --adapter-dir: how long a start takes, what each costs while nobody uses it, and what the
# first request to one waits for. Generated model and adapters (a few, and hard links of their files under N names). A start
# with two adapters stands beside that with all of them, on the same machine in turn.
#
#   tools/many_adapters.sh [--loralei BIN] [--adapters N] [--requests R] [--shape S] [--quant Q] [--rank K] [--work DIR]
#
# Prints, of R adapters: the first request's time to its one token, the load's seconds (GET /v1/adapters), a second request's
# with the adapter there (another prompt of the same length: prefill), and the ratio of the first to the sum of the other two.
set -euo pipefail

loralei=build/loralei
adapters=10000
requests=60
shape=llama-tiny
quant=q8_0
rank=16
work=
while [ $# -gt 0 ]; do
  case $1 in
    --loralei) loralei=$2; shift 2 ;;
    --adapters) adapters=$2; shift 2 ;;
    --requests) requests=$2; shift 2 ;;
    --shape) shape=$2; shift 2 ;;
    --quant) quant=$2; shift 2 ;;
    --rank) rank=$2; shift 2 ;;
    --work) work=$2; shift 2 ;;
    *) sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
if [ -z "$work" ]; then
  work=$(mktemp -d)
  remove=$work
fi
server=
finish() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null || true; }
  [ -z "${remove:-}" ] || rm -rf "$remove"
}
trap finish EXIT

mkdir -p "$work/cache"
"$loralei" bench generate --shape "$shape" --quant "$quant" --rank "$rank" --adapters 8 --cache-dir "$work/cache" >"$work/paths"
model=$(head -1 "$work/paths")
mapfile -t made < <(tail -n +2 "$work/paths")
link_adapters() {  # FOLDER N
  local i name
  mkdir -p "$1"
  (cd "$1" && seq -f 'adapter-%05.0f' 0 $(($2 - 1)) | xargs mkdir -p)
  for i in "${!made[@]}"; do
    for file in "${made[$i]}"/*; do
      seq -f "$1/adapter-%05.0f/$(basename "$file")" "$i" ${#made[@]} $(($2 - 1)) |
        while read -r name; do ln -f "$file" "$name"; done
    done
  done
}
link_adapters "$work/few" 2
link_adapters "$work/many" "$adapters"

now() { date +%s.%N; }
seconds_since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.3f", b - a}'; }
# Starts a server over FOLDER; sets `server`, `url`, `ready_s`, `ready_processor_s` and `rss_kib`.
start() {
  local began port=$((20000 + RANDOM % 20000)) i
  url=http://127.0.0.1:$port
  began=$(now)
  "$loralei" serve "$model" --adapter-dir "$1" --port "$port" --max-model-len 512 --max-num-seqs 8 --adapter-memory 64MiB \
    >"$work/serve.log" 2>&1 &
  server=$!
  for ((i = 0; i < 6000; ++i)); do
    if curl -sf "$url/ready" >/dev/null 2>&1; then break; fi
    kill -0 "$server" 2>/dev/null || { cat "$work/serve.log" >&2; exit 1; }
    sleep 0.01
  done
  ready_s=$(seconds_since "$began")
  ready_processor_s=$(processor_s)
  sleep 2  # what looks at headers goes on beside requests
  rss_kib=$(awk '/^VmRSS/ {print $2}' "/proc/$server/status")
}
# Seconds that the server's threads have computed.
processor_s() { awk -v ticks="$(getconf CLK_TCK)" '{print ($14 + $15) / ticks}' "/proc/$server/stat"; }
stop() {
  kill "$server"
  wait "$server" 2>/dev/null || true
  server=
}
# Milliseconds of a request of one token: NAME PROMPT
ask() {
  curl -sf -o /dev/null -w '%{time_total}\n' "$url/v1/completions" -H 'Content-Type: application/json' \
    -d "{\"model\": \"$1\", \"prompt\": \"$2\", \"max_tokens\": 1, \"temperature\": 0}" | awk '{print 1000 * $1}'
}

for round in 1 2 3; do
  for folder in few many; do
    start "$work/$folder"
    echo "$folder $ready_s $rss_kib $ready_processor_s" >>"$work/starts"
    [ "$round $folder" = "3 many" ] || stop
  done
done
middle() { awk -v k="$1" -v c="$2" '$1 == k {print $c}' "$work/starts" | sort -n | sed -n 2p; }
awk -v n="$adapters" -v few_s="$(middle few 2)" -v many_s="$(middle many 2)" -v few="$(middle few 3)" -v many="$(middle many 3)" \
  -v few_cpu="$(middle few 4)" -v many_cpu="$(middle many 4)" \
  'BEGIN {printf "start to ready: 2 adapters %.2f s, %d adapters %.2f s; processor time %.2f s and %.2f s (medians of three)\n", few_s, n, many_s, few_cpu, many_cpu
          printf "resident: %.1f MiB and %.1f MiB: %.2f KiB an adapter\n", few / 1024, many / 1024, (many - few) / (n - 2)}'

# The first request to an adapter, from one place to another.
words="the river runs below the old stone bridge and the red lamps burn all night long for those who come home late"
ask adapter-00000 "$words" >/dev/null
: >"$work/asked"
for ((i = 1; i <= requests; ++i)); do
  name=$(printf 'adapter-%05d' $((i * 7919 % adapters)))
  echo "$name $(ask "$name" "$i one $words") $(ask "$name" "$i two $words") $(ask "$name" "$i six $words")" >>"$work/asked"
  echo "$name $(curl -sf "$url/v1/adapters" | sed 's/{"name"/\n{"name"/g' | grep "^{\"name\":\"$name\"" | sed 's/.*"load_s":\([0-9.e-]*\).*/\1/')" >>"$work/loads"
done
stop
join <(sort "$work/asked") <(sort "$work/loads") |
  awk '{prefill = $3 < $4 ? $3 : $4; load = 1000 * $5; print $2, load, prefill, $2 / (load + prefill)}' >"$work/ratios"
column_middle() { awk -v c="$1" '{print $c}' "$work/ratios" | sort -g | awk -v p="$2" '{v[NR] = $1} END {print v[int((NR - 1) * p) + 1]}'; }
printf 'first request of %s: %.2f ms; load %.2f ms; prefill with the adapter there %.2f ms (medians)\n' "$requests" \
  "$(column_middle 1 0.5)" "$(column_middle 2 0.5)" "$(column_middle 3 0.5)"
printf 'first / (load + prefill): median %.2f, P90 %.2f\n' "$(column_middle 4 0.5)" "$(column_middle 4 0.9)"
