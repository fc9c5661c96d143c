#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_report.sh [--work DIR] [--memory-budget BYTES] [FOLDER [PART...]]: on a machine with a GPU, nvcc and CMake, builds the core with
# its GPU tests and benches, runs them, and writes FOLDER/report.md (gpu-report/ by default) and FOLDER/logs.tar.gz, which has every
# output. No package registry is needed: GoogleTest and nlohmann-json are carried along.
#
# Parts, in this order; without any, all of them:
#   build        benches first, then tests: as many as compile       ops          kernels alone
#   smoke        seconds: the machine, a product and a step          model        whole-model figures, llama-7b in bf16 (15 GB in DIR)
#   tests        all of them                                         sanitizers   memcheck and racecheck of the kernels' tests
#   peers        transformers + PEFT, where python3 has them, beside the figures of mixed
# A single step is a part too (compile-tests, machine, product, step, cuda_ops_test, attention-memcheck, make, decode, prefill, mixed,
# flatness, overflow, invariant, peft), so that a machine which ends commands after ten minutes can do everything in several calls (their order:
# docs/benchmarks.md, "On a GPU"). DIR (build-gpu/ by default) keeps the build, the model's files and the results of earlier calls; the report has them all. It is
# written before and after every step, so a call that is cut off loses the step it was in and nothing else. Every step has a time limit; but for
# benches that do not compile none stops the others. --memory-budget: the host's, for the model's figures, where the machine shows less free
# memory than it will give (flatness and overflow want 60 GB). Ends with 1 when a step of this call failed.
set -uo pipefail
cd "$(dirname "$0")/.."
work=build-gpu budget=()
while [[ ${1:-} == --* ]]; do
  if [ $# -lt 2 ]; then
    echo "gpu_report: $1 needs a value." >&2
    exit 2
  fi
  case $1 in
    --work) work=$2 ;;
    --memory-budget) budget=(--memory-budget "$2") ;;
    *)
      echo "gpu_report: there is no option $1." >&2
      exit 2
      ;;
  esac
  shift 2
done
out=${1:-gpu-report}
shift || true
mkdir -p "$out" "$work/results" || exit 1
out=$(cd "$out" && pwd)
work=$(cd "$work" && pwd)
results=$work/results
tests=(cuda_ops_test cuda_model_test cuda_graphs_test cuda_engine_test cuda_adapters_test)
figures=(decode prefill mixed flatness overflow invariant)
checked=(attention lora sample gemv norm) # kernels under the sanitizers
failed=0

# members PART: the steps it stands for.
members() {
  local kernel
  case $1 in
    build) echo configure compile compile-tests ;;
    smoke) echo machine product step ;;
    tests) echo "${tests[@]}" ;;
    sanitizers) for kernel in "${checked[@]}"; do echo "$kernel-memcheck" "$kernel-racecheck"; done ;;
    ops) echo cuda_ops_bench ;;
    model) echo make "${figures[@]}" ;;
    peers) echo peft ;;
    *) echo "$1" ;;
  esac
}
parts=(build smoke ops model peers tests sanitizers)
all_steps=$(for part in "${parts[@]}"; do members "$part"; done)

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

# limited NAME SECONDS COMMAND...: its output goes to NAME.log, a line about it to NAME.step.
limited() {
  local name=$1 seconds=$2 began status
  shift 2
  began=$(date +%s)
  echo "== $name"
  echo "- $name: begun, and cut off before its end" >"$results/$name.step"
  write_results
  timeout -k 10 "$seconds" "$@" >"$results/$name.log" 2>&1
  status=$?
  tail -3 "$results/$name.log"
  echo "- $name: exit $status, $(($(date +%s) - began)) s$([ $status = 124 ] && echo " (its limit)")" >"$results/$name.step"
  grep FAILED "$results/$name.log" | sed 's/^/    /' >>"$results/$name.step"
  [ $status = 0 ] || failed=1
  return $status
}

# not_run NAME WHY
not_run() { echo "- $1: not run, $2" | tee "$results/$1.step"; }

# built NAME SECONDS PROGRAM ARGUMENTS...: a step with a program of the build, run by what `before` says.
built() {
  local name=$1 seconds=$2 program
  program=$(find "$work/build" -type f -name "$3" -perm -u+x 2>/dev/null | head -1)
  if [ -z "$program" ]; then
    not_run "$name" "$3 is not built: run the part build first, or see compile-tests.log"
    failed=1
    return
  fi
  shift 3
  limited "$name" "$seconds" "${before[@]}" "$program" "$@"
}

run_step() {
  local name=$1 generator=() before=() go_on=(-k) ours=()
  if command -v ninja >/dev/null; then generator=(-G Ninja) go_on=(-k 0); fi
  case $name in
    configure)
      limited configure 120 cmake -S . -B "$work/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DLORALEI_CORE_ONLY=ON -DLORALEI_CUDA=on \
        "-DCMAKE_CUDA_ARCHITECTURES=$capability-real" -DLORALEI_BENCHES=ON -DLORALEI_TESTS=ON
      ;;
    compile) limited compile 420 cmake --build "$work/build" -j "$(nproc)" --target gpu_bench cuda_ops_bench ;;
    compile-tests) limited compile-tests 420 cmake --build "$work/build" -j "$(nproc)" --target "${tests[@]}" -- "${go_on[@]}" ;;
    machine) limited machine 20 bash -c "$machine_facts" ;;
    product) built product 60 cuda_ops_test --gtest_filter=CudaGemm.AgreesWithTheReference ;;
    step) built step 60 cuda_model_test '--gtest_filter=*.GivesTheHostsLogits/gqa_f32:*.GivesTheHostsLogits/gqa_bf16' ;;
    *-memcheck | *-racecheck)
      if [ -z "$(tests_of "${name%-*}")" ]; then
        echo "gpu_report: the sanitizers check ${checked[*]}; there is no ${name%-*}." >&2
        failed=1
      elif command -v compute-sanitizer >/dev/null; then
        # Tests provoke refusals of the API on purpose: those are no errors.
        before=(compute-sanitizer --tool "${name##*-}" --error-exitcode 1)
        if [[ $name == *-memcheck ]]; then before+=(--report-api-errors no); fi
        built "$name" 90 cuda_ops_test --gtest_brief=1 "--gtest_filter=$(tests_of "${name%-*}")"
      else
        not_run "$name" "compute-sanitizer is not installed here"
      fi
      ;;
    *_test | cuda_ops_bench) built "$name" 240 "$name" ;;
    make | decode | prefill | mixed | flatness | overflow | invariant)
      built "$name" 300 gpu_bench "${budget[@]}" --cache-dir "$work/files" --out "$results" "$name"
      ;;
    peft)
      if [ -f "$results/mixed.json" ]; then ours=(--ours "$results/mixed.json"); fi
      if python3 -c 'import torch, transformers, peft' 2>/dev/null; then
        limited peft 420 python3 tools/peft_bench.py "${ours[@]}" --json "$results/peft.json"
      else
        not_run peft "python3 has no torch, transformers and peft here"
      fi
      ;;
    *)
      echo "gpu_report: there is no part $name; choose of ${parts[*]}, $(echo $all_steps | sed 's/ /, /g')." >&2
      failed=1
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
  if [ -f "$results/machine.log" ]; then
    printf '\n```\n%s\n```\n' "$(cat "$results/machine.log")"
  fi
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
[ $# -gt 0 ] || set -- "${parts[@]}"
for part in "$@"; do
  for name in $(members "$part"); do
    rm -f "$results/$name.step" "$results/$name.log" "$results/$name.md" "$results/$name.json"
    run_step "$name"
    status=$?
    write_results
    # The programs of an earlier build are not what is asked about.
    if [[ $name == configure || $name == compile ]] && [ $status != 0 ]; then
      echo "gpu_report: the build failed, so nothing is measured; $results/$name.log says why." >&2
      exit 1
    fi
  done
done
echo "written: $out/report.md, $out/logs.tar.gz"
exit $failed
