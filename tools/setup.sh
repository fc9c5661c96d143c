#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing on Debian 12, as root or through sudo. `tools/setup.sh build` for building and running the server,
# `tools/setup.sh test` for the tests as well, `tools/setup.sh long` for those of other processors too. Does nothing, and needs no network, when everything is there.
set -euo pipefail

build_packages=(ca-certificates curl jq g++ cmake ninja-build pkg-config libboost1.81-dev libcli11-dev
  libspdlog-dev prometheus-cpp-dev libpcre2-dev libicu-dev libsqlite3-dev libzmq3-dev libssl-dev)
test_packages=(openssl libsentencepiece-dev clang clang-format libclang-rt-14-dev python3 python3-venv git bsdextrautils
  debootstrap dpkg-dev lintian ccache strace systemd icu-devtools man-db groff-base zsh fish nginx-light
  chromium libopenmpi-dev openmpi-bin libgrpc++-dev protobuf-compiler protobuf-compiler-grpc prometheus)
long_packages=(g++-aarch64-linux-gnu qemu-user-static bochs bochs-term bochsbios vgabios isolinux syslinux-common
  xorriso busybox-static cpio bsdutils binutils valgrind)

packages=("${build_packages[@]}")
case "${1:-build}" in
  build) ;;
  test) packages+=("${test_packages[@]}") ;;
  long) packages+=("${test_packages[@]}" "${long_packages[@]}") ;;
  *) echo "usage: tools/setup.sh [build|test|long]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing and need root to install: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
# What is installed here for tests (prometheus) starts no service.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
echo "setup: installing ${#missing[@]} packages (${missing[*]}), about 2 minutes"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
