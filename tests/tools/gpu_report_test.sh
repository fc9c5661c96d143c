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
# One of the tests compiles, the others do not; decode is measured, prefill takes its time.
stand_in program 'case $* in
  *decode) echo "| speed | 1 | 2 | NO |" >"$(sed "s/.*--out \([^ ]*\) .*/\1/" <<<"$*")/decode.md" ;;
  *prefill) sleep 5 ;;
esac
echo "ran $*"'
# A Python with the peer and one without.
stand_in python3 '[ ! -f "$(dirname "$0")/no_peer" ] || exit 1; case $* in *peft_bench*) echo "| mixed.over_peft | 4.00 | >= 3.00 | yes | from $*" ;; esac'
stand_in cmake 'case $* in
  *gpu_bench*) for name in gpu_bench cuda_ops_bench; do mkdir -p "$2"; cp "$(dirname "$0")/program" "$2/$name"; done ;;
  *cuda_ops_test*) cp "$(dirname "$0")/program" "$2/cuda_ops_test"; exit 1 ;;
esac'
export PATH=$room/bin:$PATH
report=(tools/gpu_report.sh --work "$room/kept" --memory-budget 60GiB "$room/out")
expect() {
  grep -qF -- "$1" "$2" && return
  echo "gpu_report_test: no \"$1\" in $2:" >&2
  cat "$2" >&2
  exit 1
}

! "${report[@]}" build product step decode attention-memcheck >"$room/output" 2>&1 || { echo "gpu_report_test: a failed step was not told." >&2; exit 1; }
for line in 'compile: exit 0' 'compile-tests: exit 1' 'product: exit 0' 'step: not run' 'decode: exit 0' 'attention-memcheck: exit 0' '| speed |'; do
  expect "$line" "$room/out/report.md"
done
expect '--memory-budget 60GiB' "$room/kept/results/decode.log"
expect 'gtest_filter=CudaAttention.*' "$room/kept/results/attention-memcheck.log"

"${report[@]}" peers >"$room/output" 2>&1
expect '| mixed.over_peft | 4.00' "$room/out/report.md"
touch "$room/bin/no_peer"
"${report[@]}" peers >"$room/output" 2>&1
expect 'peft: not run, python3 has no torch' "$room/out/report.md"

"${report[@]}" prefill >"$room/output" 2>&1 &
for _ in $(seq 100); do
  [ -f "$room/kept/results/prefill.log" ] && break
  sleep 0.1
done
kill -KILL $! && wait $! 2>/dev/null || true
expect 'prefill: begun, and cut off' "$room/out/report.md"
expect '| speed |' "$room/out/report.md"
tar -tzf "$room/out/logs.tar.gz" >"$room/files"
expect 'results/decode.log' "$room/files"
[ "$(ls "$room/out" | wc -l)" = 2 ] || { echo "gpu_report_test: more than a report and its logs: $(ls "$room/out")" >&2; exit 1; }
