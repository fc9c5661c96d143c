#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Loralei beside llama.cpp on the same files, the same threads, one after the other in turn; medians, and the ratio ours / theirs.
#
#   tools/bench_peer.sh kernels --peer LLAMA_BUILD/bin   prefill and decode: llama-bench and llama-batched-bench
#   tools/bench_peer.sh server  --peer LLAMA_BUILD/bin   eight requests with eight adapters against llama-server
#
# The peer is built outside this tree (docs/benchmarks.md says how); --peer or the variable LLAMA_BIN names the folder of its
# programs. Kernel runs during which other processes used more than 5 % of a core are dropped and repeated, and counted.
set -euo pipefail

mode=${1:-}
shift || true
loralei=build/loralei
peer=${LLAMA_BIN:-}
shape=llama-1b
quants=q8_0,q4_0,q4_k_m,bf16
threads=$(nproc)
repeats=5
prompts=128,512
gen=64
batches=1,8,16,32
adapters=8
rank=16
foreign_percent=5
cache_dir=${XDG_CACHE_HOME:-$HOME/.cache}/loralei
out=

usage() {
  sed -n '3,10s/^# \{0,1\}//p' "$0" >&2
  echo "options (default): --loralei BIN ($loralei) --shape NAME ($shape) --quants LIST ($quants) --threads N --repeats N ($repeats)
  --prompt LIST ($prompts) --gen N ($gen) --batch LIST ($batches) --adapters N ($adapters) --rank N ($rank)
  --foreign PERCENT ($foreign_percent) --cache-dir DIR --out FOLDER (raw results are kept there)" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --loralei) loralei=$2 ;;
    --peer) peer=$2 ;;
    --shape) shape=$2 ;;
    --quants) quants=$2 ;;
    --threads) threads=$2 ;;
    --repeats) repeats=$2 ;;
    --prompt) prompts=$2 ;;
    --gen) gen=$2 ;;
    --batch) batches=$2 ;;
    --adapters) adapters=$2 ;;
    --rank) rank=$2 ;;
    --foreign) foreign_percent=$2 ;;
    --cache-dir) cache_dir=$2 ;;
    --out) out=$2 ;;
    *) usage ;;
  esac
  shift 2
done
case $mode in kernels | server) ;; *) usage ;; esac
fail() {
  echo "bench_peer: $*" >&2
  exit 3
}
for program in jq curl column; do
  command -v "$program" >/dev/null || fail "$program is missing; install it."
done
[ -x "$loralei" ] || fail "no program '$loralei'; build it or name it with --loralei."
programs=(llama-bench llama-batched-bench)
[ "$mode" = kernels ] || programs=(llama-server)
for program in "${programs[@]}"; do
  [ -x "$peer/$program" ] || fail "no $program in '$peer'; name the peer's folder with --peer or LLAMA_BIN."
done

work=$(mktemp -d)
servers=()
finish() {
  for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
  [ -z "$out" ] || { mkdir -p "$out" && cp -r "$work/." "$out/"; }
  rm -rf "$work"
}
trap finish EXIT

echo "ours: $("$loralei" --version)"
echo "peer: $peer"
if [ -r "$peer/../CMakeCache.txt" ]; then
  echo "peer's flags: $(grep -E '^(CMAKE_BUILD_TYPE|CMAKE_CXX_FLAGS|GGML_(NATIVE|AVX|AMX|OPENMP|BLAS|LLAMAFILE)[A-Z0-9_]*):[A-Z]*=.' "$peer/../CMakeCache.txt" |
    sed 's/:[A-Z]*=/=/' | grep -v '=OFF$' | tr '\n' ' ')"
fi
echo "threads $threads, repeats $repeats, files: $shape in $cache_dir"

busy_ticks() { awk '/^cpu /{print $2 + $3 + $4 + $7 + $8 + $9}' /proc/stat; }
child_ticks() { sed 's/.*) //' /proc/$$/stat | awk '{print $14 + $15}'; } # user and system time of ended children
dropped=0
# quiet OUTPUT COMMAND...: runs until the machine was quiet meanwhile, at most three times.
quiet() {
  local output=$1 attempt
  shift
  for attempt in 1 2 3; do
    local busy child begin
    busy=$(busy_ticks) child=$(child_ticks) begin=$(date +%s%N)
    "$@" >"$output" 2>"$work/errors" || { tail -20 "$work/errors" >&2; fail "this failed, its last words are above: $*"; }
    local foreign=$(($(busy_ticks) - busy - $(child_ticks) + child)) wall=$((($(date +%s%N) - begin) / 10000000))
    if [ $((foreign * 100)) -le $((wall * foreign_percent + 300)) ]; then return; fi
    if [ "$attempt" -lt 3 ]; then dropped=$((dropped + 1)); fi
  done
  noisy=$((noisy + 1))
}
noisy=0

ours() { quiet "$work/ours.txt" "$loralei" bench "$@" --shape "$shape" --cache-dir "$cache_dir" -t "$threads" --rounds 1 \
  --foreign-cpu 1000 --adapters 0 --json "$work/ours.json"; }
keep_ours() { # PREFIX KEY: rows "decode.llama-1b.q8_0.b8.tok_s" become KEY with the part behind the quant
  jq -c --arg prefix "$1" '.rows[] | select((.name | startswith($prefix)) and (.name | endswith(".tok_s"))) |
    {key: (.name | ltrimstr($prefix) | rtrimstr(".tok_s")), who: "ours", value}' "$work/ours.json" | sed "s/\"key\":\"/&$2/" >>"$work/rows.jsonl"
}

kernels() {
  local quant file repeat context most
  most=$(tr , '\n' <<<"$batches" | sort -n | tail -1)
  context=$((most * 64 + 64))
  : >"$work/rows.jsonl"
  for quant in ${quants//,/ }; do
    file=$("$loralei" bench generate --shape "$shape" --quant "$quant" --adapters 0 --cache-dir "$cache_dir" | tail -1) ||
      fail "the $quant model of the shape $shape could not be made."
    for ((repeat = 0; repeat < repeats; ++repeat)); do
      ours prefill --quant "$quant" --prompt "$prompts"
      keep_ours "prefill.$shape.$quant." "$quant prefill "
      ours decode --quant "$quant" --prompt 1 --gen "$gen" --batch 1
      keep_ours "decode.$shape.$quant.b1" "$quant decode g$gen"
      quiet "$work/peer.jsonl" "$peer/llama-bench" -m "$file" -t "$threads" -p "$prompts" -n "$gen" -r 1 -o jsonl
      cp "$work/peer.jsonl" "$work/version.jsonl"
      jq -c --arg quant "$quant" '{key: (if .n_gen > 0 then "\($quant) decode g\(.n_gen)" else "\($quant) prefill p\(.n_prompt)" end),
        who: "peer", value: .avg_ts}' "$work/peer.jsonl" >>"$work/rows.jsonl"
      [ "$batches" != 0 ] || continue
      ours decode --quant "$quant" --prompt 32 --gen 32 --batch "$batches"
      keep_ours "decode.$shape.$quant." "$quant decode "
      quiet "$work/peer.jsonl" "$peer/llama-batched-bench" -m "$file" -t "$threads" -tb "$threads" -c "$context" -npp 32 -ntg 32 \
        -npl "$batches" --output-format jsonl
      grep '^{' "$work/peer.jsonl" >"$work/lines.jsonl" || fail "llama-batched-bench told no figures; is its version too old for --output-format jsonl?"
      jq -c --arg quant "$quant" '{key: "\($quant) decode b\(.pl)", who: "peer", value: .speed_tg}' "$work/lines.jsonl" >>"$work/rows.jsonl"
    done
  done
  jq -es 'group_by(.key) | any((map(.who) | unique | length) == 2)' "$work/rows.jsonl" >/dev/null ||
    fail "no figure is there of both programs; --out keeps what they said."
  jq -rs 'def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
    def short: . * 100 | round / 100;
    "figure\tours\tmin\tmax\tpeer\tmin\tmax\tours/peer",
    (reduce .[] as $row ({}; .[$row.key][$row.who] += [$row.value]) | to_entries[] | .value as $v |
     select($v.ours and $v.peer) |
     [.key, ($v.ours | median, min, max | short), ($v.peer | median, min, max | short), (($v.ours | median) / ($v.peer | median) | short)] |
     map(tostring) | join("\t"))' "$work/rows.jsonl" | column -t -s $'\t'
  jq -r '"peer: llama.cpp \(.build_commit), build \(.build_number), \(.cpu_info)"' <"$work/version.jsonl" | head -1
  echo "tok/s; $dropped runs dropped for other load, $noisy kept although there was some"
}

wait_ready() { # URL NAME PID
  for _ in $(seq 600); do
    if curl -fsS -o /dev/null "$1/health" 2>/dev/null; then return; fi
    kill -0 "$3" 2>/dev/null || break
    sleep 0.2
  done
  tail -5 "$work/$2.log" >&2
  fail "the server '$2' does not answer, its last words are above."
}

server() {
  "$peer/llama-server" --version 2>&1 | grep -i version || true
  local quant files model list ours_port=18391 peer_port=18392
  for quant in ${quants//,/ }; do
    "$loralei" bench generate --shape "$shape" --quant "$quant" --adapters "$adapters" --rank "$rank" --gguf-adapters \
      --cache-dir "$cache_dir" >"$work/files" || fail "the $quant model of the shape $shape or its adapters could not be made."
    mapfile -t files <"$work/files"
    model=${files[0]}
    list=$(IFS=,; echo "${files[*]:1}")
    local ours_flags=() file
    for file in "${files[@]:1}"; do ours_flags+=(--adapter "$file"); done
    "$loralei" serve "$model" -t "$threads" --max-num-seqs "$adapters" -c 2048 --host 127.0.0.1 --port $ours_port "${ours_flags[@]}" >"$work/ours.log" 2>&1 &
    servers=($!)
    "$peer/llama-server" -m "$model" --lora "$list" --lora-init-without-apply -np "$adapters" -c 2048 -kvu -t "$threads" -tb "$threads" \
      --host 127.0.0.1 --port $peer_port >"$work/peer.log" 2>&1 &
    servers+=($!)
    wait_ready http://127.0.0.1:$ours_port ours "${servers[0]}"
    wait_ready http://127.0.0.1:$peer_port peer "${servers[1]}"
    "$loralei" bench server --url http://127.0.0.1:$ours_port --peer-url http://127.0.0.1:$peer_port --label "$shape.$quant" --batch "$adapters" \
      --adapters "$adapters" --prompt 32 --gen 32 --rounds "$repeats" --json "$work/server-$quant.json" ||
      fail "the servers could not be measured with $quant weights."
    for server in "${servers[@]}"; do kill "$server" && wait "$server" || true; done
    servers=()
  done
}

"$mode"
