#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Machines that have nothing yet, as folders: Debian's smallest base, with a package manager that works.
#   clean_root.sh make FOLDER [package ...]   makes one, with these packages (SUITE=bullseye: another Debian, default bookworm)
#   clean_root.sh run FOLDER COMMAND...       runs a command in it, with /proc and /dev of its own; LORALEI_... variables pass
#   clean_root.sh can                         says why it cannot, and ends with 1, where this machine cannot make them
# The base is made once and kept in build/roots; it comes from the mirror that this machine's own packages come from.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
suite=${SUITE:-bookworm}

can() {
  [ "$(id -u)" -eq 0 ] || { echo "a clean root needs root to be made"; return 1; }
  command -v debootstrap >/dev/null || { echo "debootstrap is not installed: tools/setup.sh test brings it"; return 1; }
  unshare --mount --pid --fork true 2>/dev/null || { echo "this machine lets nobody make namespaces"; return 1; }
}

mirror() {
  awk '/^URIs:/ {print $2; exit} /^deb / {for (i = 2; i <= NF; ++i) if ($i ~ /^https?:/) {print $i; exit}}' \
    $(ls /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2>/dev/null)
}

make_base() {
  local base=$tree/build/roots/$suite.tar
  [ -f "$base" ] && return
  mkdir -p "$tree/build/roots"
  local work
  work=$(mktemp -d)
  debootstrap --variant=minbase --include=ca-certificates "$suite" "$work/root" "$(mirror)" >"$work/log" 2>&1 || { cat "$work/log" >&2; rm -rf "$work"; exit 1; }
  rm -rf "$work/root/var/cache/apt/archives/"*.deb
  # Nothing starts by being installed, as on a machine without an init.
  printf '#!/bin/sh\nexit 101\n' >"$work/root/usr/sbin/policy-rc.d"
  chmod +x "$work/root/usr/sbin/policy-rc.d"
  tar -C "$work/root" --one-file-system -cf "$base.new" .
  mv "$base.new" "$base"
  rm -rf "$work"
}

run() {
  local root=$1
  shift
  unshare --mount --pid --fork -- sh -ec '
    root=$1; shift
    mount -t proc proc "$root/proc"
    for one in null zero full random urandom; do touch "$root/dev/$one"; mount --bind "/dev/$one" "$root/dev/$one"; done
    exec chroot "$root" "$@"' sh "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive $(env | grep -o '^LORALEI_[A-Z_]*=[^ ]*' || true) "$@"
}

case "${1:-}" in
  can) can ;;
  make)
    folder=$2
    shift 2
    can >&2
    make_base
    mkdir -p "$folder"
    tar -C "$folder" -xf "$tree/build/roots/$suite.tar"
    cp /etc/resolv.conf "$folder/etc/resolv.conf"
    if [ $# -gt 0 ]; then
      run "$folder" apt-get update -qq
      run "$folder" apt-get install -y -qq --no-install-recommends "$@" >"$folder/var/log/packages.log" 2>&1 || { cat "$folder/var/log/packages.log" >&2; exit 1; }
    fi
    ;;
  run)
    shift
    run "$@"
    ;;
  *)
    sed -n '3,7s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
