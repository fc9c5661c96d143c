#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds the CPU backend on this machine against its targets (docs/benchmarks.md) and writes FOLDER/report.md, a table with what was
# measured, the target, and whether it is met; FOLDER/raw has every program's own output.
#
#   tools/cpu_report.sh [--loralei BIN] [--peer LLAMA_BUILD/bin] [--rounds N] [--foreign-cpu CORES] [--cache-dir DIR] [FOLDER [PART...]]
#
# Parts, in this order; without any, all of them, those beside llama.cpp only with --peer (or LLAMA_BIN):
#   machine     its ceilings                                    load        a 7B from a warm cache: seconds, and memory beyond its file
#   decode      1, 8, 16, 32 sequences by format                threads     prompts on two threads against one, in turn
#   prefill     prompts of 128 and 512 tokens by format         neighbour   decoding while a core is busy with something else
#   mixed       eight adapters against one                      quality     exact match of the demo's skills, 1,000 prompts
#   seven       decoding a 7B                                   peer        kernels beside llama.cpp
#                                                               peer_seven  a 7B beside it        peer_server  eight adapters live beside it
# The report is written after every part and has those of earlier calls too. Ends with 1 where a figure could not be measured; a target
# missed is a line of the report, no failure. Takes about half an hour, with the peer about an hour and a half, and 15 GB of generated files.
set -uo pipefail
export LC_ALL=C # a point in every number
cd "$(dirname "$0")/.."
loralei=build/loralei
peer=${LLAMA_BIN:-}
rounds=5
foreign=0.05
cache_dir=${XDG_CACHE_HOME:-$HOME/.cache}/loralei
threads=$(nproc)

fail() {
  echo "cpu_report: $*" >&2
  exit 2
}
while [[ ${1:-} == --* ]]; do
  [ $# -ge 2 ] || fail "$1 needs a value."
  case $1 in
    --loralei) loralei=$2 ;;
    --peer) peer=$2 ;;
    --rounds) rounds=$2 ;;
    --foreign-cpu) foreign=$2 ;;
    --cache-dir) cache_dir=$2 ;;
    *) fail "there is no option $1; the head of this file lists them." ;;
  esac
  shift 2
done
out=${1:-cpu-report}
shift || true
parts=(machine decode prefill mixed seven load threads neighbour quality)
beside_peer=(peer peer_seven peer_server)
if [ $# = 0 ]; then
  set -- "${parts[@]}"
  [ -z "$peer" ] || set -- "$@" "${beside_peer[@]}"
fi
for part in "$@"; do
  [[ " ${parts[*]} ${beside_peer[*]} " == *" $part "* ]] || fail "there is no part $part; choose of ${parts[*]} ${beside_peer[*]}."
done
for program in jq curl taskset column; do command -v $program >/dev/null || fail "$program is missing; install it."; done
[ -x "$loralei" ] || fail "no program '$loralei'; build it or name it with --loralei."
raw=$out/raw
mkdir -p "$raw" || exit 2

children=()
stop_children() {
  for child in "${children[@]}"; do kill "$child" 2>/dev/null && wait "$child" 2>/dev/null; done
  children=()
}
trap stop_children EXIT

# bench NAME ARGUMENTS...: NAME.json has the rows, NAME.log what was said.
bench() {
  local name=$1
  shift
  "$loralei" bench "$@" --cache-dir "$cache_dir" --report "$raw/$name.html" --json "$raw/$name.json" >"$raw/$name.log" 2>&1 || { tail -3 "$raw/$name.log" >&2; return 1; }
}

missing() {
  echo "cpu_report: $part: $1" >&2
  failed=1
}

# line FIGURE MEASURED VALUE [OP TARGET]: a row of the table, of the part that runs; $label stands before the figure's name.
line() {
  if ! [[ $3 =~ ^-?[0-9.]+(e[-+]?[0-9]+)?$ ]]; then
    missing "$label$1 is no number ('$3'); see $raw."
    return
  fi
  printf '%s\t%s\t%s\t%s\t%s\n' "$label$1" "$2" "$3" "${4:-}" "${5:-}" >>"$raw/$part.rows" || missing "$raw cannot be written."
}

# rows NAME ENDING FIELD [OP TARGET]: a row for each figure of NAME.json that ends so; FIELD (value, fraction or ratio) is what is held against the target.
rows() {
  local figure measured value found=0
  while IFS=$'\t' read -r figure measured value; do
    found=1
    line "$figure" "$measured" "$value" "${@:4}"
  done < <(jq -r --arg ending "$2" --arg field "$3" 'def short: if . >= 100 then round else . * 100 | round / 100 end;
    .rows[] | select((.name | endswith($ending)) and .[$field] != null) |
    ["\(.name)\({fraction: " / bound", ratio: " / llama.cpp"}[$field] // "")",
     "\(.value | short) \(.unit) (\(.min | short) .. \(.max | short))", .[$field]] | @tsv' "$raw/$1.json")
  [ $found = 1 ] || missing "no figure of $raw/$1.json ends in '$2' and has a $3."
}

value_of() { jq -r --arg ending "$2" 'first(.rows[] | select(.name | endswith($ending)) | .value)' "$raw/$1.json"; }
compute() { awk "BEGIN { printf \"%.4g\", $* }" 2>/dev/null; } # nothing where a number is missing
median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

run_machine() {
  bench machine machine --rounds "$rounds" || return
  rows machine "" value
}

run_decode() {
  local quant
  for quant in q8_0 q4_0 q4_k_m; do
    bench decode-$quant decode --shape llama-1b --quant $quant --batch 1,8,16,32 --prompt 1 --gen 24 --rounds "$rounds" --foreign-cpu "$foreign" || return
    rows decode-$quant .b1.tok_s fraction '>=' 0.80
    rows decode-$quant .b8.tok_s fraction '>=' 0.60
    rows decode-$quant .b16.tok_s fraction '>=' 0.35
    rows decode-$quant .b32.tok_s fraction '>=' 0.35
    rows decode-$quant .b32.rest_share value '<=' 0.05
  done
}

run_prefill() {
  local quant
  for quant in q8_0 q4_0 q4_k_m; do
    bench prefill-$quant prefill --shape llama-1b --quant $quant --prompt 128,512 --rounds "$rounds" --foreign-cpu "$foreign" || return
    rows prefill-$quant .tok_s fraction '>=' "$([ $quant = q4_k_m ] && echo 0.38 || echo 0.50)"
  done
}

run_mixed() {
  local case quant adapters
  for case in bf16 q8_0 q4_0 q4_0+int8; do
    quant=${case%+int8}
    adapters=() label=
    if [ $case != $quant ]; then adapters=(--adapter-quant int8) label='int8 adapters, '; fi
    bench mixed-$case mixed --shape llama-1b --quant $quant --adapters 8 "${adapters[@]}" --prompt 1 --gen 24 --tax-pairs 0 --rounds "$rounds" \
      --foreign-cpu "$foreign" || return
    rows mixed-$case ratio fraction '>=' 0.92
  done
}

run_seven() {
  bench seven decode --shape llama-7b --quant q4_0 --batch 1,8 --prompt 1 --gen 24 --rounds "$rounds" --foreign-cpu "$foreign" || return
  rows seven .b1.tok_s fraction '>=' 0.85
  rows seven .b8.tok_s fraction '>=' 0.60
}

# The second start counts: then the file is in the system's cache.
run_load() {
  local model began seconds memory file turn tries url=http://127.0.0.1:18393/health
  model=$("$loralei" bench generate --shape llama-7b --quant q4_0 --adapters 0 --cache-dir "$cache_dir" 2>"$raw/load.log" | tail -1)
  [ -f "$model" ] || return
  if curl -sS -o /dev/null $url 2>/dev/null; then
    echo "cpu_report: another program answers at $url; end it first." >&2
    return 1
  fi
  for turn in 1 2; do
    began=$(date +%s.%N)
    "$loralei" serve "$model" --host 127.0.0.1 --port 18393 -c 2048 >"$raw/load.log" 2>&1 &
    children=($!)
    for ((tries = 0; ; ++tries)); do # two minutes at most
      if curl -fsS -m 5 -o /dev/null $url 2>/dev/null; then break; fi
      kill -0 "${children[0]}" 2>/dev/null && [ $tries -lt 2400 ] || { tail -3 "$raw/load.log" >&2; return 1; }
      sleep 0.05
    done
    seconds=$(compute "$(date +%s.%N) - $began")
    memory=$(awk '/^VmRSS/ { print $2 * 1024 }' "/proc/${children[0]}/status")
    stop_children
  done
  file=$(stat -Lc %s "$model")
  line load.llama-7b.q4_0.seconds "$seconds s" "$seconds" '<=' 3
  line load.llama-7b.q4_0.beyond_file "$(compute "($memory - $file) / 1e6") MB of $(compute "$memory / 1e6")" "$(compute "($memory - $file) / 1e6")" '<=' 150
}

two_threads() { [ "$threads" -ge 2 ] || { echo "cpu_report: $part needs two cores; this process has $threads." >&2; return 1; }; }

run_threads() {
  local one two turn count ratio ratios=()
  two_threads || return
  for ((turn = 0; turn < rounds; ++turn)); do
    for count in 1 2; do
      bench threads-$count prefill --shape llama-1b --quant q4_0 --prompt 128 --rounds 1 -t $count --foreign-cpu "$foreign" || return
    done
    one=$(value_of threads-1 .tok_s) two=$(value_of threads-2 .tok_s)
    ratios+=("$(compute "$two / $one")")
  done
  ratio=$(printf '%s\n' "${ratios[@]}" | median)
  line prefill.llama-1b.q4_0.t2_over_t1 "${ratios[*]}" "$ratio" '>=' 1.85
}

run_neighbour() {
  local batch free busy status cpu
  two_threads || return
  bench neighbour-free decode --shape llama-1b --quant q4_0 --batch 1,8 --prompt 1 --gen 32 --rounds "$rounds" --foreign-cpu "$foreign" || return
  cpu=$(sed -n 's/^Cpus_allowed_list:.*[^0-9]\([0-9]*\)$/\1/p' /proc/self/status) # the last of this process's
  taskset -c "$cpu" sh -c 'while :; do :; done' &
  children=($!)
  bench neighbour-busy decode --shape llama-1b --quant q4_0 --batch 1,8 --prompt 1 --gen 32 --rounds "$rounds" --foreign-cpu 1000
  status=$?
  kill -0 "${children[0]}" 2>/dev/null || { echo "cpu_report: nothing kept core $cpu busy." >&2; status=1; }
  stop_children
  [ $status = 0 ] || return
  for batch in 1 8; do
    free=$(value_of neighbour-free ".b$batch.tok_s") busy=$(value_of neighbour-busy ".b$batch.tok_s")
    line "decode.llama-1b.q4_0.b$batch.busy_core / share of the free cores" "$(compute "$busy") of $(compute "$free") tok/s" \
      "$(compute "$busy / ($free * ($threads - 1) / $threads)")" '>=' 0.85
  done
}

run_quality() {
  tools/bench_quality.sh "$loralei" >"$raw/quality.log" 2>&1 || { tail -3 "$raw/quality.log" >&2; return 1; }
  percent() { sed -n "s/^$1: all *\([0-9.]*\)%.*/\1/p" "$raw/quality.log"; }
  local quant plain exact rounded
  plain=$(percent 'weights as in the file (bf16), f32 inputs')
  for quant in q8_0 q4_0; do
    exact=$(percent "$quant, f32 inputs") rounded=$(percent "$quant, int8 inputs")
    line "quality.demo.$quant.int8_inputs, points below f32 inputs" "$rounded of $exact %" "$(compute "$exact - $rounded")" '<=' 0.5
    line "quality.demo.$quant, points below bf16" "$rounded of $plain %" "$(compute "$plain - $rounded")" \
      $([ $quant = q4_0 ] || echo '<= 0.5')
  done
}

# kernels NAME ARGUMENTS...: NAME.jsonl has the rows of both programs.
kernels() {
  local name=$1
  shift
  tools/bench_peer.sh kernels --loralei "$loralei" --peer "$peer" --cache-dir "$cache_dir" --repeats "$rounds" \
    --foreign "$(printf %.0f "${foreign}e2")" --out "$raw/$name" "$@" >"$raw/$name.log" 2>&1 || { tail -3 "$raw/$name.log" >&2; return 1; }
  cp "$raw/$name/rows.jsonl" "$raw/$name.jsonl"
}

# beside NAME KEY [OP TARGET]: both programs' medians of that figure.
beside() {
  local ours theirs
  ours=$(jq -r --arg key "$2" 'select(.key == $key and .who == "ours").value' "$raw/$1.jsonl" | median)
  theirs=$(jq -r --arg key "$2" 'select(.key == $key and .who == "peer").value' "$raw/$1.jsonl" | median)
  line "$2 / llama.cpp" "$(compute "$ours") of $(compute "$theirs") tok/s" "$(compute "$ours / $theirs")" "${@:3}"
}

run_peer() {
  local quant prompt batch target
  kernels peer --quants q8_0,q4_0,q4_k_m --gen 24 || return
  for quant in q8_0 q4_0 q4_k_m; do
    for prompt in 128 512; do beside peer "$quant prefill p$prompt" '>=' "$([ $quant = q4_k_m ] && echo 2.5 || echo 3)"; done
    beside peer "$quant decode g24"
    for batch in 8 16 32; do
      case $quant in q8_0) target='>= 3.5' ;; q4_0) target='>= 4' ;; *) target= ;; esac
      beside peer "$quant decode b$batch" $target
    done
  done
  kernels peer-plain --quants bf16,f16_of_bf16 --gen 16 --batch 0 || return
  for quant in bf16 f16_of_bf16; do
    for prompt in 128 512; do beside peer-plain "$quant prefill p$prompt" '>=' 1.3; done
  done
}

run_peer_seven() {
  kernels peer-seven --shape llama-7b --quants q4_0 --prompt 16 --gen 24 --batch 0 || return
  label='llama-7b '
  beside peer-seven 'q4_0 decode g24' '>=' 1.7
}

run_peer_server() {
  local quant
  tools/bench_peer.sh server --loralei "$loralei" --peer "$peer" --cache-dir "$cache_dir" --repeats "$rounds" --quants q8_0,q4_0 \
    --out "$raw/peer-server" >"$raw/peer-server.log" 2>&1 || { tail -3 "$raw/peer-server.log" >&2; return 1; }
  for quant in q8_0 q4_0; do
    cp "$raw/peer-server/server-$quant.json" "$raw/"
    rows server-$quant .many.tok_s ratio '>=' "$([ $quant = q8_0 ] && echo 8 || echo 7)"
  done
}

report() {
  echo "# The CPU backend on this machine, $(date -u +%Y-%m-%d)"
  echo
  echo "$("$loralei" --version), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1) (family $(sed -n 's/^cpu family[^:]*: //p' /proc/cpuinfo | head -1)), $threads threads; the last call had $rounds rounds.$([ -n "$peer" ] && echo " llama.cpp: $peer.")"
  echo
  echo "| figure | measured | held against the target | target | met |"
  echo "|---|---|---|---|---|"
  local part
  for part in "${parts[@]}" "${beside_peer[@]}"; do
    [ -f "$raw/$part.rows" ] || continue
    awk -F '\t' '{ met = $5 == "" ? "" : ($4 == ">=" ? $3 >= $5 : $3 <= $5) ? "yes" : "NO"
      printf "| %s | %s | %s | %s | %s |\n", $1, $2, $5 == "" ? "" : sprintf("%.3g", $3), $5 == "" ? "" : $4 " " $5, met }' "$raw/$part.rows"
  done
}

failed=0
for part in "$@"; do
  echo "== $part"
  label=
  if [[ " ${beside_peer[*]} " == *" $part "* ]] && [ -z "$peer" ]; then
    echo "cpu_report: $part needs llama.cpp's programs; name their folder with --peer." >&2
    failed=1
    continue
  fi
  rm -f "$raw/$part.rows"
  "run_$part" || missing "it could not be measured; $raw has what was said."
  report >"$out/report.md.new" && mv "$out/report.md.new" "$out/report.md" || missing "$out/report.md could not be written."
  [ ! -f "$raw/$part.rows" ] || column -t -s $'\t' "$raw/$part.rows"
done
echo "written: $out/report.md"
exit $failed
