#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_report.sh [FOLDER]: on a machine with a GPU, nvcc and CMake, builds the core with its GPU tests and benches, runs them and
# compute-sanitizer, and writes FOLDER/report.md (gpu-report/ by default) with every output in a file beside it. No package registry
# is needed: GoogleTest and nlohmann-json are carried along. Ends with 1 when a test or a sanitizer found something. About 10 minutes
# on 16 cores.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu-report}
mkdir -p "$out"
out=$(cd "$out" && pwd)
report=$out/report.md
failed=0

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d ' .')
if [ -z "$capability" ]; then
  echo "gpu_report: nvidia-smi names no GPU; run this where one is." >&2
  exit 1
fi
{
  echo "# Loralei on a GPU, $(date -u +%Y-%m-%d)"
  echo
  echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1), $(nproc) cores."
  echo
} >"$report"

# step NAME COMMAND...: its output goes to NAME.log, a line about it to the report.
step() {
  local name=$1 began status
  shift
  began=$(date +%s)
  echo "== $name"
  "$@" >"$out/$name.log" 2>&1
  status=$?
  tail -3 "$out/$name.log"
  echo "- $name: exit $status, $(($(date +%s) - began)) s" >>"$report"
  if [ $status -ne 0 ]; then failed=1; fi
  return $status
}

generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
build=$out/build
step configure cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DLORALEI_CORE_ONLY=ON -DLORALEI_CUDA=on \
  "-DCMAKE_CUDA_ARCHITECTURES=$capability-real" -DLORALEI_BENCHES=ON -DLORALEI_TESTS=ON || { cat "$out/configure.log"; exit 1; }
tests=(cuda_ops_test cuda_model_test cuda_graphs_test cuda_engine_test cuda_adapters_test)
step build cmake --build "$build" -j "$(nproc)" --target "${tests[@]}" cuda_ops_bench || { tail -40 "$out/build.log"; exit 1; }

for test in "${tests[@]}"; do
  program=$(find "$build" -type f -name "$test" | head -1)
  step "$test" "$program"
  sed -n '/FAILED/p' "$out/$test.log" | sed 's/^/    /' >>"$report"
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      step "$test-$tool" timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 1 "$program" --gtest_brief=1
    done
  else
    echo "- compute-sanitizer is not installed here: not run" >>"$report"
  fi
done

step cuda_ops_bench "$(find "$build" -type f -name cuda_ops_bench | head -1)"
{
  echo
  echo '```'
  cat "$out/cuda_ops_bench.log"
  echo '```'
} >>"$report"
echo "written: $report"
exit $failed
