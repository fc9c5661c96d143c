#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_report.sh [FOLDER [PART...]]: on a machine with a GPU, nvcc and CMake, builds the core with its GPU tests and benches, runs
# them, and writes FOLDER/report.md (gpu-report/ by default) with every output in a file beside it. No package registry is needed:
# GoogleTest and nlohmann-json are carried along.
#
# Parts, in this order; without any, all of them:
#   build        ops           tests (memcheck and racecheck of a test: NAME-memcheck)
#   sanitizers   model         whole-model figures, llama-7b in bf16 (about 15 GB below FOLDER/files)
# A single step is a part too (cuda_ops_test, cuda_ops_test-memcheck, make, decode, prefill, mixed, flatness, overflow, invariant), so
# that a machine which ends commands after ten minutes can do everything in several calls: FOLDER keeps the build, the files and the
# results of earlier calls, and the report has them all. Every step has a time limit; but for a failed build none stops the others. On
# 16 cores: build 3 minutes, tests and ops 2, model 12 at most, sanitizers as long as their limits allow. Ends with 1 when a step of
# this call failed.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu-report}
shift || true
mkdir -p "$out"
out=$(cd "$out" && pwd)
build=$out/build
tests=(cuda_ops_test cuda_model_test cuda_graphs_test cuda_engine_test cuda_adapters_test)
figures=(decode prefill mixed flatness overflow invariant)
failed=0

# members PART: the steps it stands for.
members() {
  local test
  case $1 in
    build) echo configure compile ;;
    tests) echo "${tests[@]}" ;;
    sanitizers) for test in "${tests[@]}"; do echo "$test-memcheck" "$test-racecheck"; done ;;
    ops) echo cuda_ops_bench ;;
    model) echo make "${figures[@]}" ;;
    *) echo "$1" ;;
  esac
}
all_steps=$(for part in build tests sanitizers ops model; do members $part; done)

# limited NAME SECONDS COMMAND...: its output goes to NAME.log, a line about it to NAME.step.
limited() {
  local name=$1 seconds=$2 began status
  shift 2
  began=$(date +%s)
  echo "== $name"
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1
  status=$?
  tail -3 "$out/$name.log"
  echo "- $name: exit $status, $(($(date +%s) - began)) s$([ $status = 124 ] && echo " (its limit)")" >"$out/$name.step"
  grep FAILED "$out/$name.log" | sed 's/^/    /' >>"$out/$name.step"
  [ $status = 0 ] || failed=1
}

# built NAME SECONDS PROGRAM ARGUMENTS...: a step with a program of the build.
built() {
  local name=$1 seconds=$2 program
  program=$(find "$build" -type f -name "$3" -perm -u+x 2>/dev/null | head -1)
  shift 3
  if [ -z "$program" ]; then
    echo "gpu_report: the program of $name is not built; run the part build first." >&2
    echo "- $name: not run, its program is not built" >"$out/$name.step"
    failed=1
    return
  fi
  limited "$name" "$seconds" "${before[@]}" "$program" "$@"
}

run_step() {
  local name=$1 generator=() before=() # before: what runs the program
  case $name in
    configure)
      if command -v ninja >/dev/null; then generator=(-G Ninja); fi
      limited configure 120 cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DLORALEI_CORE_ONLY=ON -DLORALEI_CUDA=on \
        "-DCMAKE_CUDA_ARCHITECTURES=$capability-real" -DLORALEI_BENCHES=ON -DLORALEI_TESTS=ON
      ;;
    compile) limited compile 560 cmake --build "$build" -j "$(nproc)" --target "${tests[@]}" cuda_ops_bench gpu_bench ;;
    *-memcheck | *-racecheck)
      if command -v compute-sanitizer >/dev/null; then
        # Tests provoke refusals of the API on purpose: those are no errors.
        before=(compute-sanitizer --tool "${name##*-}" --error-exitcode 1)
        if [[ $name == *-memcheck ]]; then before+=(--report-api-errors no); fi
        built "$name" 240 "${name%-*}" --gtest_brief=1
      else
        echo "- $name: not run, compute-sanitizer is not installed here" >"$out/$name.step"
      fi
      ;;
    *_test | cuda_ops_bench) built "$name" 240 "$name" ;;
    make | decode | prefill | mixed | flatness | overflow | invariant)
      built "$name" 300 gpu_bench --cache-dir "$out/files" --out "$out" "$name"
      ;;
    *)
      echo "gpu_report: there is no part $name; choose of build, tests, sanitizers, ops, model, $(echo $all_steps | sed 's/ /, /g')." >&2
      failed=1
      ;;
  esac
}

# The report of every step so far.
write_report() {
  local name
  echo "# Loralei on a GPU, $(date -u +%Y-%m-%d)"
  echo
  echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1), $(nproc) cores."
  echo
  for name in $all_steps; do
    [ -f "$out/$name.step" ] && cat "$out/$name.step"
  done
  echo
  echo "| number | value | target | met |"
  echo "|---|---|---|---|"
  for name in "${figures[@]}"; do
    [ -f "$out/$name.md" ] && grep -E '\| (yes|NO) \|$' "$out/$name.md"
  done
  for name in "${figures[@]}"; do
    [ -f "$out/$name.step" ] || continue
    echo
    if [ -f "$out/$name.md" ]; then cat "$out/$name.md"; else echo "$name: not measured."; fi
  done
  echo
  echo "Not measured: transformers + PEFT and vLLM's LoRA kernels on this GPU."
  if [ -f "$out/cuda_ops_bench.log" ]; then
    echo
    echo '```'
    cat "$out/cuda_ops_bench.log"
    echo '```'
  fi
}

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d ' .')
if [ -z "$capability" ]; then
  echo "gpu_report: nvidia-smi names no GPU; run this where one is." >&2
  exit 1
fi
[ $# -gt 0 ] || set -- build tests ops model sanitizers
for part in "$@"; do
  for name in $(members "$part"); do
    rm -f "$out/$name.step" "$out/$name.md" "$out/$name.json"
    run_step "$name"
    write_report >"$out/report.md"
    # The programs of an earlier build are not what is asked about.
    if [[ $name == configure || $name == compile ]] && [ $failed != 0 ]; then
      echo "gpu_report: the build failed, so nothing is measured; $out/$name.log says why." >&2
      exit 1
    fi
  done
done
echo "written: $out/report.md"
exit $failed
