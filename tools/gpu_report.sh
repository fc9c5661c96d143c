#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_report.sh [--work DIR] [--seconds N] [--memory-budget BYTES] [FOLDER [PART...]]: on a machine with a GPU, nvcc and CMake, builds
# the core with its GPU tests and benches, runs them, and writes FOLDER/report.md (gpu-report/ by default) and FOLDER/logs.tar.gz, which
# has every output. No package registry is needed: GoogleTest and nlohmann-json are carried along.
# gpu_report.sh --plan: prints every part, its steps, and the seconds they are expected to take and may take at most (16 cores, one H100).
#
# Parts, in this order; without any, all of them:
#   build        benches first, then tests: as many as compile       ops          kernels alone
#   smoke        seconds: the machine, then layer after layer        model        whole-model figures, llama-7b in bf16 (14 GB in DIR)
#   peers        transformers + PEFT beside the figures of mixed     tests        all of them; a test that is skipped here has failed
#   sanitizers   memcheck and racecheck of the kernels' tests
# Every step of them is a part too, and so are call-1, call-2 and call-3: everything in three calls, for a machine that ends commands
# after ten minutes. Each builds what it needs, which takes seconds where DIR stays from one to the next:
#   gpu_report.sh --seconds 570 FOLDER call-1
# DIR (build-gpu/ by default) keeps the build, the model's files and the results of earlier calls; the report has them all. FOLDER is
# written every few seconds, so a call that is cut off loses nothing that was printed. Every step has a time limit, and none stops the
# others. --seconds: of the whole call (0, the default: no limit); a step that is expected to take longer than is left is not run, and the report says so.
# --memory-budget: of host memory, for the model's figures; 60GiB (flatness and overflow keep 50 GB of adapters there), or three
# quarters of the machine's where that is less. Ends with 1 unless every step of this call ran and succeeded, but for those whose tool
# (compute-sanitizer, the peer's Python) is not installed.
set -uo pipefail
cd "$(dirname "$0")/.."

# What each step is expected to take and may take at most, in seconds.
steps='
  configure 15 120      compile 100 420        compile-tests 100 420
  machine 5 20          layers 15 60           cuda_ops_bench 60 240
  make 60 300           decode 90 300          prefill 60 300         mixed 90 300
  flatness 120 300      overflow 120 300       invariant 90 300
  peft 180 420
  cuda_ops_test 40 240  cuda_model_test 40 240 cuda_graphs_test 40 240 cuda_engine_test 20 240 cuda_adapters_test 20 240
  cuda_ranks_test 20 240
  attention-memcheck 40 120  lora-memcheck 40 120  sample-memcheck 20 120  gemv-memcheck 40 120  norm-memcheck 20 120
  attention-racecheck 40 120 lora-racecheck 40 120 sample-racecheck 20 120 gemv-racecheck 40 120 norm-racecheck 20 120'
parts=(build smoke ops model peers tests sanitizers)
calls=(call-1 call-2 call-3)
tests=(cuda_ops_test cuda_model_test cuda_graphs_test cuda_engine_test cuda_adapters_test cuda_ranks_test)
figures=(decode prefill mixed flatness overflow invariant)
checked=(attention lora sample gemv norm) # kernels under the sanitizers

# seconds_of STEP: expected and most; nothing where there is no such step.
seconds_of() { xargs -n 3 <<<"$steps" | sed -n "s/^$1 //p"; }

# members PART: the steps it stands for, in their order; a step stands for itself.
members() {
  local kernel
  case $1 in
    build) echo configure compile compile-tests ;;
    smoke) echo machine layers ;;
    tests) echo "${tests[@]}" ;;
    sanitizers) for kernel in "${checked[@]}"; do echo "$kernel-memcheck" "$kernel-racecheck"; done ;;
    ops) echo cuda_ops_bench ;;
    model) echo make "${figures[@]}" ;;
    peers) echo peft ;;
    call-1) echo configure compile machine layers cuda_ops_bench make decode prefill ;;
    call-2) echo configure compile-tests "${tests[@]}" compile make mixed flatness ;;
    call-3) echo configure compile make overflow invariant compile-tests $(members sanitizers) peft ;;
    *) [ -z "$(seconds_of "$1")" ] || echo "$1" ;;
  esac
}
all_steps=$(for part in "${parts[@]}"; do members "$part"; done)

plan() {
  local part name expected most sum
  for part in "${parts[@]}" "${calls[@]}"; do
    sum=0
    echo "$part"
    for name in $(members "$part"); do
      read -r expected most <<<"$(seconds_of "$name")"
      printf '  %-20s %4d s, at most %d s\n' "$name" "$expected" "$most"
      sum=$((sum + expected))
    done
    echo "  together             $sum s"
  done
}

work=build-gpu budget='' seconds=0
while [[ ${1:-} == --* ]]; do
  if [ "$1" = --plan ]; then
    plan
    exit 0
  fi
  if [ $# -lt 2 ]; then
    echo "gpu_report: $1 needs a value." >&2
    exit 2
  fi
  case $1 in
    --work) work=$2 ;;
    --memory-budget) budget=$2 ;;
    --seconds) seconds=$2 ;;
    *)
      echo "gpu_report: there is no option $1." >&2
      exit 2
      ;;
  esac
  shift 2
done
if ! [[ $seconds =~ ^[0-9]{1,6}$ ]]; then
  echo "gpu_report: --seconds is a whole number, not '$seconds'." >&2
  exit 2
fi
out=${1:-gpu-report}
shift || true
[ $# -gt 0 ] || set -- "${parts[@]}"
for part in "$@"; do
  if [ -z "$(members "$part")" ]; then
    echo "gpu_report: there is no part $part; choose of ${parts[*]} ${calls[*]}, or of their steps (--plan lists them)." >&2
    exit 2
  fi
done
mkdir -p "$out" "$work/results" || exit 1
out=$(cd "$out" && pwd)
work=$(cd "$work" && pwd)
results=$work/results
failed=0

# What the machine, or the group of processes this one is in, has of memory.
memory_bytes() {
  local total group
  total=$(awk '/^MemTotal/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
  group=$(cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | grep -xE '[0-9]{1,18}' | sort -n | head -1)
  echo $((${group:-$total} < total ? ${group:-$total} : total))
}
if [ -z "$budget" ]; then
  sixty=$((60 << 30)) most=$(($(memory_bytes) / 4 * 3))
  budget=$((most < sixty ? most : sixty))
fi

# Tests run as so many processes, where the GPU lets more than one in.
shards=$(($(nproc) / 2 > 8 ? 8 : ($(nproc) + 1) / 2))
if nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | grep -qi exclusive; then shards=1; fi

# left: seconds of this call.
left() { [ "$seconds" = 0 ] && echo 1000000 || echo $((seconds - SECONDS)); }

# tests_of KERNEL: a filter of cuda_ops_test.
tests_of() {
  case $1 in
    attention) echo 'CudaAttention.*' ;;
    lora) echo 'CudaLora.*' ;;
    sample) echo 'CudaSample.*' ;;
    gemv) echo 'CudaGemv.*:CudaThinGemm.*' ;;
    norm) echo 'CudaElementwise.*' ;;
  esac
}

# What the machine is, and where cuBLASLt would come from.
machine_facts='
  nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total,memory.free --format=csv
  nvcc --version | tail -2
  echo "$(nproc) cores"
  grep -E "^(MemTotal|MemAvailable)" /proc/meminfo
  df -h . | tail -1
  toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  found=$(ldconfig -p | grep libcublasLt.so; find -L "$toolkit" -maxdepth 4 -name "libcublasLt.so.*")
  echo "libcublasLt: ${found:-NOT FOUND by ldconfig or in $toolkit}"'

# What a step has printed so far is in FOLDER as well. Ends when told, between two writes, or with this script.
keep_writing() {
  local stop=''
  trap 'stop=1' TERM
  while kill -0 $$ 2>/dev/null; do
    sleep 3 &
    wait $!
    [ -z "$stop" ] || return 0
    write_results
    [ -z "$stop" ] || return 0
  done
}

# limited NAME COMMAND...: its output goes to NAME.log, a line about it to NAME.step.
limited() {
  local name=$1 began=$SECONDS expected most status ticker
  shift
  read -r expected most <<<"$(seconds_of "$name")"
  if [ "$most" -gt "$(left)" ]; then most=$(left); fi
  echo "== $name"
  echo "- $name: begun, and cut off before its end" >"$results/$name.step"
  write_results
  keep_writing >/dev/null 2>&1 &
  ticker=$!
  timeout -k 10 "$most" "$@" >"$results/$name.log" 2>&1
  status=$?
  kill "$ticker"
  wait "$ticker"
  tail -3 "$results/$name.log"
  echo "- $name: exit $status, $((SECONDS - began)) s$([ $status = 124 ] && echo " (its limit)")" >"$results/$name.step"
  grep FAILED "$results/$name.log" | sed 's/^/    /' >>"$results/$name.step"
  [ $status = 0 ] || failed=1
  return $status
}

# not_run NAME WHY
not_run() { echo "- $1: not run, $2" | tee "$results/$1.step"; }

# program_of NAME TARGET: the path of a program of the build; says why not where there is none.
program_of() {
  find "$work/build" -type f -name "$2" -perm -u+x 2>/dev/null | head -1 | grep . && return
  not_run "$1" "$2 is not built: run the part build first, or see compile.log and compile-tests.log" >&2
  return 1
}

# built NAME TARGET ARGUMENTS...
built() {
  local name=$1 program
  program=$(program_of "$name" "$2") || { failed=1; return 1; }
  shift 2
  limited "$name" "$program" "$@"
}

# The tests of a GoogleTest program, in shards beside each other; one line of the log says whose it is.
# Skipped means that no device or no data was found, which on this machine is what the tests are to show.
in_shards='
  set -o pipefail
  shards=$1
  shift
  pids=()
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$@" 2>&1 | sed -u "s/^/$shard: /" &
    pids+=($!)
  done
  status=0
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  exit $status'
# tested NAME TARGET RUNNER... -- ARGUMENTS...: RUNNER (a sanitizer, or nothing) runs the program.
tested() {
  local name=$1 program skipped runner=()
  program=$(program_of "$name" "$2") || { failed=1; return 1; }
  shift 2
  while [ "$1" != -- ]; do
    runner+=("$1")
    shift
  done
  shift
  limited "$name" bash -c "$in_shards" shards "$shards" "${runner[@]}" "$program" --gtest_brief=1 "$@"
  skipped=$(grep -c ': Skipped$' "$results/$name.log")
  [ "$skipped" = 0 ] && return
  failed=1
  echo "    FAILED: $skipped tests were skipped; the log says what they did not find" >>"$results/$name.step"
}

# made NAME TARGETS -- ...: builds; the programs of an earlier build are not what is asked about.
made() {
  local name=$1 target go_on=(-k)
  if command -v ninja >/dev/null; then go_on=(-k 0); fi
  shift
  for target in "$@"; do find "$work/build" -type f -name "$target" -delete 2>/dev/null; done
  limited "$name" cmake --build "$work/build" -j "$(nproc)" --target "$@" -- "${go_on[@]}"
}

run_step() {
  local name=$1 generator=() ours=() memcheck=() alone=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  case $name in
    configure)
      limited configure cmake -S . -B "$work/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DLORALEI_CORE_ONLY=ON -DLORALEI_CUDA=on \
        "-DCMAKE_CUDA_ARCHITECTURES=$capability-real" -DLORALEI_BENCHES=ON -DLORALEI_TESTS=ON
      ;;
    compile) made compile gpu_smoke gpu_bench cuda_ops_bench ;;
    compile-tests) made compile-tests "${tests[@]}" ;;
    machine) limited machine bash -c "$machine_facts" ;;
    layers) built layers gpu_smoke --cache-dir "$work/files" ;;
    *-memcheck | *-racecheck)
      if command -v compute-sanitizer >/dev/null; then
        # Tests provoke refusals of the API on purpose: those are no errors.
        if [[ $name == *-memcheck ]]; then memcheck=(--report-api-errors no); fi
        tested "$name" cuda_ops_test compute-sanitizer --tool "${name##*-}" --error-exitcode 1 "${memcheck[@]}" -- "--gtest_filter=$(tests_of "${name%-*}")"
      else
        not_run "$name" "compute-sanitizer is not installed here"
      fi
      ;;
    cuda_ranks_test)
      # NCCL wants a GPU for every rank; through pinned memory ranks may share one.
      if [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then alone=('--gtest_filter=-NcclGroup.IsTheTwin:*OverNccl*'); fi
      tested "$name" "$name" -- "${alone[@]}"
      ;;
    *_test) tested "$name" "$name" -- ;;
    cuda_ops_bench) built "$name" "$name" ;;
    make | decode | prefill | mixed | flatness | overflow | invariant)
      built "$name" gpu_bench --memory-budget "$budget" --cache-dir "$work/files" --out "$results" "$name"
      ;;
    peft)
      if [ -f "$results/mixed.json" ]; then ours=(--ours "$results/mixed.json"); fi
      if python3 -c 'import torch, transformers, peft' 2>/dev/null; then
        limited peft python3 tools/peft_bench.py "${ours[@]}" --json "$results/peft.json"
      else
        not_run peft "python3 has no torch, transformers and peft here"
      fi
      ;;
  esac
}

# The report of every step so far.
report() {
  local name
  echo "# Loralei on a GPU, $(date -u +%Y-%m-%d)"
  echo
  echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1), $(nproc) cores."
  echo
  for name in $all_steps; do
    [ -f "$results/$name.step" ] && cat "$results/$name.step"
  done
  for name in machine layers; do
    if [ -f "$results/$name.log" ]; then printf '\n```\n%s\n```\n' "$(cat "$results/$name.log")"; fi
  done
  echo
  echo "| number | value | target | met |"
  echo "|---|---|---|---|"
  for name in "${figures[@]}"; do
    [ -f "$results/$name.md" ] && grep -E '\| (yes|NO) \|$' "$results/$name.md"
  done
  [ -f "$results/peft.log" ] && grep '^| mixed.over_peft' "$results/peft.log"
  for name in "${figures[@]}"; do
    [ -f "$results/$name.step" ] || continue
    echo
    if [ -f "$results/$name.md" ]; then cat "$results/$name.md"; else echo "$name: not measured."; fi
  done
  echo
  [ -f "$results/peft.log" ] && grep '^transformers' "$results/peft.log"
  echo "Not measured: vLLM's LoRA kernels on this GPU$([ -f "$results/peft.json" ] || echo ", transformers + PEFT")."
  if [ -f "$results/cuda_ops_bench.log" ]; then
    printf '\n```\n%s\n```\n' "$(cat "$results/cuda_ops_bench.log")"
  fi
}

# Each file is whole at any moment.
write_results() {
  report >"$work/report.md" && cp "$work/report.md" "$out/report.md.new" && mv "$out/report.md.new" "$out/report.md"
  tar -czf "$out/logs.tar.gz.new" -C "$work" results && mv "$out/logs.tar.gz.new" "$out/logs.tar.gz"
}

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d ' .')
if [ -z "$capability" ]; then
  echo "gpu_report: nvidia-smi names no GPU; run this where one is." >&2
  exit 1
fi
for part in "$@"; do
  for name in $(members "$part"); do
    read -r expected most <<<"$(seconds_of "$name")"
    if [ "$expected" -gt "$(left)" ]; then
      failed=1
      # What an earlier call found stays.
      [ -f "$results/$name.step" ] || not_run "$name" "it is expected to take $expected s and $(left) s of --seconds were left"
      continue
    fi
    rm -f "$results/$name.step" "$results/$name.log" "$results/$name.md" "$results/$name.json"
    run_step "$name"
    write_results
  done
done
write_results
echo "written: $out/report.md, $out/logs.tar.gz"
exit $failed
