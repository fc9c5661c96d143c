#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A model larger than its memory, really confined: `loralei serve --memory-budget B` in a memory cgroup of B + 3 % without swap,
# and llama-server on the same file in a cgroup of the same size, at its best of one and two threads without repacking.
#
#   tools/bench_cgroup.sh --model FILE.gguf [--peer LLAMA_BUILD/bin] [--budgets 1.0,2.0,3.0,3.5]
#
# Prints for each budget the decode rate of both, what of the budget is used after it (anonymous, locked and kernel memory), and
# whether the kernel had to kill. Needs root and a writable memory controller (v1 or v2).
set -euo pipefail

loralei=build/loralei
model=
peer=
budgets=1.0,2.0,3.0,3.5
tokens=24
peer_tokens=6
cache_dir=${XDG_CACHE_HOME:-$HOME/.cache}/loralei

usage() {
  sed -n '3,9s/^# \{0,1\}//p' "$0" >&2
  echo "options (default): --loralei BIN ($loralei) --tokens N ($tokens) --peer-tokens N ($peer_tokens) --cache-dir DIR" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --loralei) loralei=$2 ;;
    --model) model=$2 ;;
    --peer) peer=$2 ;;
    --budgets) budgets=$2 ;;
    --tokens) tokens=$2 ;;
    --peer-tokens) peer_tokens=$2 ;;
    --cache-dir) cache_dir=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[ -n "$model" ] || usage
fail() {
  echo "bench_cgroup: $*" >&2
  exit 1
}
command -v curl >/dev/null || fail "curl is missing; install it."
[ -r "$model" ] || fail "no file '$model'; name one with --model."
[ -x "$loralei" ] || fail "no program '$loralei'; build it or name it with --loralei."
[ -z "$peer" ] || [ -x "$peer/llama-server" ] || fail "no llama-server in '$peer'; name the peer's folder with --peer."

if [ -d /sys/fs/cgroup/memory ]; then
  root=/sys/fs/cgroup/memory version=1
elif grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
  root=/sys/fs/cgroup version=2
  echo +memory >/sys/fs/cgroup/cgroup.subtree_control || fail "the memory controller cannot be switched on; run as root."
else
  fail "there is no memory controller; run as root where one is mounted."
fi
group=$root/loralei-bench-$$
work=$(mktemp -d)
server=
stop_all() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
  server=
}
clean_up() {
  stop_all
  rmdir "$group" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

field() { awk -v name="$1" '$1 == name {print $2}' "$group/memory.stat"; }
# Anonymous memory (locked pages are part of it) and the kernel's.
used_now() {
  if [ $version = 1 ]; then
    echo $(($(field rss) + $(cat "$group/memory.kmem.usage_in_bytes" 2>/dev/null || echo 0)))
  else
    local kernel
    kernel=$(field kernel) # told from Linux 5.18 on
    echo $(($(field anon) + ${kernel:-0}))
  fi
}
killed() {
  if [ $version = 1 ]; then awk '$1 == "oom_kill" {print $2}' "$group/memory.oom_control"
  else awk '$1 == "oom_kill" {print $2}' "$group/memory.events"; fi
}

# confined LIMIT_BYTES URL COMMAND...: starts the server in the group and waits until it answers.
confined() {
  local limit=$1 url=$2
  shift 2
  # Pages that others have read into the cache would be free for the group: the file starts out on disk.
  sync "$model"
  dd if="$model" iflag=nocache count=0 2>/dev/null || fail "the cached pages of '$model' cannot be given up."
  mkdir "$group" || fail "no memory group can be made; run as root."
  local limit_file=memory.max
  [ $version = 2 ] || limit_file=memory.limit_in_bytes
  echo "$limit" >"$group/$limit_file" || fail "the group's memory cannot be limited."
  local no_swap=memory.swap.max swap_bytes=0
  [ $version = 2 ] || no_swap=memory.memsw.limit_in_bytes swap_bytes=$limit # memory and swap together
  if [ -e "$group/$no_swap" ]; then
    echo "$swap_bytes" >"$group/$no_swap" || fail "the group's swap cannot be forbidden."
  elif [ "$(wc -l </proc/swaps)" -gt 1 ]; then
    fail "the kernel does not limit a group's swap; switch swap off (swapoff -a)."
  fi
  bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' _ "$group" "$@" >"$work/server.log" 2>&1 &
  server=$!
  for _ in $(seq 1200); do
    [ "$(curl -s -o "$work/health" -w '%{http_code}' "$url/health")" != 200 ] || return 0
    kill -0 "$server" 2>/dev/null || return 1
    sleep 0.1
  done
  return 1
}
released() {
  stop_all
  for _ in $(seq 50); do rmdir "$group" 2>/dev/null && return; sleep 0.1; done
  fail "the memory group of the last server is still in use."
}
seconds() { date +%s.%N; }

# decode_rate URL TOKENS: tokens per second of one answer, behind a first one that warms up.
decode_rate() {
  body() { printf '{"prompt": "%s", "max_tokens": %d, "n_predict": %d, "temperature": 0, "ignore_eos": true, "cache_prompt": false}' "$1" "$2" "$2"; }
  curl -sf "$1/v1/completions" -H 'Content-Type: application/json' -d "$(body a 2)" >/dev/null || return 1
  local t0 t1 t2
  t0=$(seconds)
  curl -sf "$1/v1/completions" -H 'Content-Type: application/json' -d "$(body b 1)" >/dev/null || return 1
  t1=$(seconds)
  curl -sf "$1/v1/completions" -H 'Content-Type: application/json' -d "$(body c $(($2 + 1)))" >/dev/null || return 1
  t2=$(seconds)
  # What the prompt and the first token take is in both.
  awk -v n="$2" -v a="$t0" -v b="$t1" -v c="$t2" 'BEGIN {printf "%.3f", n / ((c - b) - (b - a))}'
}

port=18231
failed=0
# measured WHO TOKENS: its rate, or what was in the way.
measured() {
  local rate
  if ! rate=$(decode_rate "$url" "$2"); then
    rate=failed failed=1
    tail -3 "$work/server.log" >&2
  fi
  report "$1" "$rate"
}
not_started() { # WHO
  tail -3 "$work/server.log" >&2
  report "$1" "did not start"
  failed=1
}
printf '%-10s %12s %14s %12s %8s %s\n' "budget GB" "tok/s" "used GB" "of budget" "killed" "who"
for budget in ${budgets//,/ }; do
  bytes=$(awk -v gb="$budget" 'BEGIN {printf "%.0f", gb * 1e9}')
  limit=$((bytes / 100 * 103))
  report() { # WHO RATE
    awk -v b="$budget" -v r="$2" -v m="$(used_now)" -v k="$(killed)" -v w="$1" \
      'BEGIN {printf "%-10s %12s %14.3f %12.3f %8d %s\n", b, r, m / 1e9, m / 1e9 / b, k, w}'
  }
  url=http://127.0.0.1:$port
  if confined "$limit" "$url" "$loralei" serve "$model" --port $port --memory-budget "$bytes" -c 128 --max-num-seqs 1 -b 32 \
    --adapter-memory 1MiB --speculate off --no-prefix-cache --cache-dir "$cache_dir"; then
    measured loralei "$tokens"
  else
    not_started loralei
  fi
  released
  [ -n "$peer" ] || continue
  for threads in 1 2; do
    if confined "$limit" "$url" "$peer/llama-server" -m "$model" --port $port -t $threads -c 128 -np 1 --no-repack --no-warmup; then
      measured "llama.cpp, $threads threads" "$peer_tokens"
    else
      not_started "llama.cpp, $threads threads"
    fi
    released
  done
done
[ $failed = 0 ] || fail "not every server could be measured; what they said last is above."
