#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What number formats cost: exact match of the demo's skills on 1,000 held-out prompts (125 a skill, adapters mixed), by format of
# the weights and of the layer inputs (`--activations f32`: the same quantised weights, decoded).
#
#   tools/bench_quality.sh [LORALEI [PROMPTS_A_SKILL]]
set -euo pipefail
cd "$(dirname "$0")/.."
loralei=${1:-build/loralei}
count=${2:-125}
port=18473
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null' EXIT
fail() {
  echo "bench_quality: $*" >&2
  exit 3
}
[ -x "$loralei" ] || fail "no program '$loralei'; build it or name it."

measure() { # NAME serve's options...
  local name=$1
  shift
  "$loralei" serve demo/model --adapter-dir demo/adapters --port $port --log-level error "$@" >/dev/null &
  server=$!
  local tries=0 result
  until curl -sf "http://127.0.0.1:$port/health" >/dev/null; do
    kill -0 "$server" 2>/dev/null && [ $((++tries)) -lt 600 ] || fail "the server did not start ($*)."
    sleep 0.1
  done
  result=$(python3 demo/evaluate.py --url "http://127.0.0.1:$port" --count "$count" --seed 4711 --adapters-only --min-with 0 | grep '^all') ||
    fail "demo/evaluate.py told no figure ($name)."
  echo "$name: $result"
  kill "$server"
  wait "$server" || true
  server=
}

measure "weights as in the file (bf16), f32 inputs" --activations f32
measure "weights as in the file (bf16), inputs as they are by default"
for quant in q8_0 q4_0; do
  measure "$quant, f32 inputs" --quant $quant --activations f32
  measure "$quant, int8 inputs" --quant $quant
done
measure "q8_0, int8 inputs, int8 adapters, int8 KV" --quant q8_0 --adapter-quant int8 --kv-cache-dtype int8
