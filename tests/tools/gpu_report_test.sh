#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_report.sh between programs that are stand-ins: what fails or is cut off loses nothing else.
set -euo pipefail
cd "$(dirname "$0")/../.."
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
mkdir "$room/bin"
stand_in() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$room/bin/$1"
  chmod +x "$room/bin/$1"
}
stand_in nvidia-smi 'case $* in *compute_cap\ *) echo 9.0 ;; *) echo "A GPU, 1, 2 MiB" ;; esac'
stand_in nvcc 'echo release 1'
stand_in compute-sanitizer 'echo "checked: $*"'
# Two of the tests compile, the others do not, and one of them skips; decode is measured, prefill takes its time.
stand_in program 'case $0-$* in
  *cuda_ops_test-*) echo "shard $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS" ;;
  *cuda_graphs_test-*) printf "graphs.cc:3: Skipped\nno GPU\n\n[  SKIPPED ] 1 test.\n" ;;
  *decode) echo "| speed | 1 | 2 | NO |" >"$(sed "s/.*--out \([^ ]*\) .*/\1/" <<<"$*")/decode.md" ;;
  *prefill) echo "begins"; sleep 5 ;;
esac
echo "ran $*"'
# A Python with the peer and one without.
stand_in python3 '[ ! -f "$(dirname "$0")/no_peer" ] || exit 1; case $* in *peft_bench*) echo "| mixed.over_peft | 4.00 | >= 3.00 | yes | from $*" ;; esac'
stand_in cmake 'case $* in
  *gpu_bench*) [ ! -f "$(dirname "$0")/broken" ] || exit 1
    for name in gpu_smoke gpu_bench cuda_ops_bench; do mkdir -p "$2"; cp "$(dirname "$0")/program" "$2/$name"; done ;;
  *cuda_ops_test*) for name in cuda_ops_test cuda_graphs_test; do cp "$(dirname "$0")/program" "$2/$name"; done; exit 1 ;;
esac'
export PATH=$room/bin:$PATH
report=(tools/gpu_report.sh --work "$room/kept" --memory-budget 61GiB "$room/out")
expect() {
  grep -qF -- "$1" "$2" && return
  echo "gpu_report_test: no \"$1\" in $2:" >&2
  cat "$2" >&2
  exit 1
}

! "${report[@]}" build layers decode cuda_ops_test cuda_graphs_test cuda_model_test attention-memcheck >"$room/output" 2>&1 || { echo "gpu_report_test: a failed step was not told." >&2; exit 1; }
for line in 'compile: exit 0' 'compile-tests: exit 1' 'layers: exit 0' 'decode: exit 0' 'attention-memcheck: exit 0' '| speed |' \
  'cuda_ops_test: exit 0' 'FAILED: 1 tests were skipped' 'cuda_model_test: not run'; do
  expect "$line" "$room/out/report.md"
done
expect '--memory-budget 61GiB' "$room/kept/results/decode.log"
expect 'gtest_filter=CudaAttention.*' "$room/kept/results/attention-memcheck.log"
shards=$(grep -c 'shard . of' "$room/kept/results/cuda_ops_test.log")
expect "$((shards - 1)): shard $((shards - 1)) of $shards" "$room/kept/results/cuda_ops_test.log"

# Skipped tests alone are a failure, and so is what does not fit into the seconds; what an earlier call found stays.
! "${report[@]}" cuda_graphs_test >"$room/output" 2>&1 || { echo "gpu_report_test: a skipped test was not told." >&2; exit 1; }
! "${report[@]:0:3}" --seconds 80 "${report[@]:3}" layers flatness decode >"$room/output" 2>&1 || { echo "gpu_report_test: seconds that do not do were not told." >&2; exit 1; }
expect 'layers: exit 0' "$room/out/report.md"
expect 'flatness: not run, it is expected to take' "$room/out/report.md"
expect 'decode: exit 0' "$room/out/report.md"
! "${report[@]}" flat >"$room/output" 2>&1 || { echo "gpu_report_test: a part that is none was taken." >&2; exit 1; }
expect 'there is no part flat' "$room/output"

# Every step has its seconds in the plan, and every part and call is there.
tools/gpu_report.sh --plan >"$room/plan"
for line in build smoke ops model peers tests sanitizers call-1 call-2 call-3 '  layers ' '  norm-racecheck ' '  cuda_engine_test '; do
  expect "$line" "$room/plan"
done

# Benches that do not compile leave the tests alone, and no program of an earlier build is measured.
touch "$room/bin/broken"
! "${report[@]}" compile decode cuda_ops_test >"$room/output" 2>&1 || { echo "gpu_report_test: a failed build was not told." >&2; exit 1; }
for line in 'compile: exit 1' 'decode: not run, gpu_bench is not built' 'cuda_ops_test: exit 0'; do expect "$line" "$room/out/report.md"; done
rm "$room/bin/broken"
"${report[@]}" compile decode >"$room/output" 2>&1

# Without a stated budget, one that this machine can give.
"${report[@]:0:3}" "$room/out" decode >"$room/output" 2>&1
expect '--memory-budget' "$room/kept/results/decode.log"
stated=$(sed -n 's/.*--memory-budget \([0-9]*\) .*/\1/p' "$room/kept/results/decode.log")
[ "$stated" -gt 0 ] && [ "$stated" -le $((60 << 30)) ] && [ "$((stated / 1024))" -lt "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)" ] || { echo "gpu_report_test: a budget of $stated bytes." >&2; exit 1; }

"${report[@]}" peers >"$room/output" 2>&1
expect '| mixed.over_peft | 4.00' "$room/out/report.md"
touch "$room/bin/no_peer"
"${report[@]}" peers >"$room/output" 2>&1
expect 'peft: not run, python3 has no torch' "$room/out/report.md"

"${report[@]}" prefill >"$room/output" 2>&1 &
began=$!
printed() { tar -xzOf "$room/out/logs.tar.gz" results/prefill.log 2>/dev/null | grep -q begins; }
for _ in $(seq 100); do
  printed && break
  sleep 0.1
done
kill -KILL "$began" && wait "$began" 2>/dev/null || true
printed || { echo "gpu_report_test: what a step had printed was not in the logs before its end." >&2; exit 1; }
expect 'prefill: begun, and cut off' "$room/out/report.md"
expect '| speed |' "$room/out/report.md"
tar -tzf "$room/out/logs.tar.gz" >"$room/files"
expect 'results/decode.log' "$room/files"
sleep 4 # what writes beside a step ends with it
[ "$(ls "$room/out" | wc -l)" = 2 ] || { echo "gpu_report_test: more than a report and its logs: $(ls "$room/out")" >&2; exit 1; }
