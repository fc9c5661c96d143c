#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/cpu_report.sh between programs that are stand-ins: figures get the right targets, and what fails loses nothing else.
set -euo pipefail
cd "$(dirname "$0")/../.."
room=$(mktemp -d)
other=
trap 'rm -rf "$room"; [ -z "$other" ] || kill "$other" 2>/dev/null' EXIT
mkdir -p "$room/bin" "$room/web"
echo ok >"$room/web/health"
head -c 1000000 /dev/zero >"$room/model.gguf"
stand_in() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$room/bin/$1"
  chmod +x "$room/bin/$1"
}
# Decodes one sequence at 0.9 of a bound and more at half of one; mixes nothing; q8_0 prompts twice as fast with two threads.
stand_in loralei 'all=" $* "
option() { sed -n "s/.* $1 \([^ ]*\) .*/\1/p" <<<"$all"; }
row() { echo "{\"name\": \"$1\", \"unit\": \"tok/s\", \"value\": $2, \"min\": $2, \"max\": $2, \"fraction\": $3}"; }
case $1-$2 in
  --version*) echo "loralei 0" ;;
  bench-generate) echo "'"$room"'/model.gguf" ;;
  bench-mixed) echo "no memory"; exit 3 ;;
  bench-*)
    prefix=$2.$(option --shape).$(option --quant) threads=$(option -t)
    case $2 in
      decode)
        rows="$(row $prefix.b1.tok_s 40 0.9),$(row $prefix.b32.rest_share 0.04 null)"
        for batch in 8 16 32; do rows+=",$(row $prefix.b$batch.tok_s $((20 * batch)) 0.5)"; done ;;
      prefill) rows=$(row $prefix.p128.tok_s $((100 * ${threads:-2})) 0.6) ;;
    esac
    echo "{\"rows\": [$rows]}" >"$(option --json)" ;;
  serve-*) cd "'"$room"'/web" && exec python3 -m http.server --bind 127.0.0.1 "$(option --port)" ;;
esac'
stand_in llama-bench 'for n in 128 512; do
  echo "{\"n_gen\": 0, \"n_prompt\": $n, \"avg_ts\": 50, \"build_commit\": \"c\", \"build_number\": 1, \"cpu_info\": \"i\"}"
done
echo "{\"n_gen\": 24, \"n_prompt\": 0, \"avg_ts\": 20}"'
stand_in llama-batched-bench 'for n in 8 16 32; do echo "{\"pl\": $n, \"speed_tg\": 20}"; done'
# The same, but for one figure.
stand_in forgetful 'case $1-$2 in bench-decode) "$(dirname "$0")/loralei" "$@" && sed -i "s/b8.tok_s/b9.tok_s/" "${@: -1}" ;; *) exec "$(dirname "$0")/loralei" "$@" ;; esac'
report=(tools/cpu_report.sh --loralei "$room/bin/loralei" --rounds 2 --foreign-cpu 100 --cache-dir "$room")
expect() {
  grep -qF -- "$1" "$2" && return
  echo "cpu_report_test: no \"$1\" in $2:" >&2
  cat "$2" >&2
  exit 1
}
fails() { # STATUS SENTENCE ARGUMENTS...
  local status=0
  "${report[@]}" "${@:3}" >"$room/output" 2>&1 || status=$?
  [ $status = "$1" ] || { echo "cpu_report_test: $status instead of $1 for ${*:3}" >&2; cat "$room/output" >&2; exit 1; }
  expect "$2" "$room/output"
}

fails 1 'mixed: it could not be measured' "$room/out" decode mixed load threads
for line in \
  '| decode.llama-1b.q4_0.b1.tok_s / bound | 40 tok/s (40 .. 40) | 0.9 | >= 0.80 | yes |' \
  '| decode.llama-1b.q4_k_m.b8.tok_s / bound | 160 tok/s (160 .. 160) | 0.5 | >= 0.60 | NO |' \
  '| decode.llama-1b.q8_0.b32.rest_share | 0.04 tok/s (0.04 .. 0.04) | 0.04 | <= 0.05 | yes |' \
  '| load.llama-7b.q4_0.seconds |' '| load.llama-7b.q4_0.beyond_file |' \
  '| prefill.llama-1b.q4_0.t2_over_t1 | 2 2 | 2 | >= 1.85 | yes |'; do
  expect "$line" "$room/out/report.md"
done
fails 1 'peer needs llama.cpp' "$room/out" peer
"${report[@]}" --peer "$room/bin" "$room/out" peer prefill >"$room/output" 2>&1
for line in '| q8_0 prefill p128 / llama.cpp | 200 of 50 tok/s | 4 | >= 3 | yes |' '| q4_0 decode b8 / llama.cpp | 160 of 20 tok/s | 8 | >= 4 | yes |' \
  '| prefill.llama-1b.q4_k_m.p128.tok_s / bound | 200 tok/s (200 .. 200) | 0.6 | >= 0.38 | yes |' \
  '| decode.llama-1b.q4_0.b1.tok_s / bound |'; do # the last is from the call before
  expect "$line" "$room/out/report.md"
done
# What is not there is never met: a figure that a program leaves out, another program where ours should answer.
fails 1 "ends in '.b8.tok_s'" --loralei "$room/bin/forgetful" "$room/out" decode
! grep -F 'b8.tok_s' "$room/out/report.md" || { echo "cpu_report_test: a figure that is missing is in the report" >&2; exit 1; }
expect '| q8_0 prefill p128 / llama.cpp |' "$room/out/report.md"
fails 1 'peer needs llama.cpp' "$room/out" peer
expect '| q8_0 prefill p128 / llama.cpp |' "$room/out/report.md"
(cd "$room/web" && exec python3 -m http.server --bind 127.0.0.1 18393) >/dev/null 2>&1 &
other=$!
for _ in $(seq 100); do curl -fsS -o /dev/null http://127.0.0.1:18393/health 2>/dev/null && break || sleep 0.1; done
fails 1 'another program answers' "$room/out" load
kill $other && wait $other 2>/dev/null || true
other=
! grep -F 'load.llama-7b' "$room/out/report.md" || { echo "cpu_report_test: the load of another program is in the report" >&2; exit 1; }
fails 2 'there is no part speed' "$room/out" speed
fails 2 'no program' --loralei "$room/none" "$room/out" decode
