#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# dependencies.sh DIRECTORY [TRIPLE]: builds, from Debian's sources, static libraries of what Debian has only as shared ones, or as
# static ones that need others: libzmq without encryption and multicast, prometheus-cpp's core. Does nothing where they are there.
set -euo pipefail
mkdir -p "$1"
directory=$(cd "$1" && pwd)
triple=${2:-}
[ ! -f "$directory/complete" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sources" "$work/lists" "$work/cmake"
# The sources of the very packages that this machine is set up for, checked by apt as those are.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
  case $file in
    *.sources) [ ! -f $file ] || sed 's/^Types:.*/Types: deb-src/' $file >"$work/sources/debian.sources" ;;
    *) [ ! -f $file ] || sed -n 's/^deb \(\[[^]]*\] \)\?/deb-src /p' $file >"$work/sources/debian.list" ;;
  esac
done
options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources" -o "Dir::State::lists=$work/lists" -o APT::Sandbox::User=root)
cd "$work"
apt-get "${options[@]}" update
apt-get "${options[@]}" source zeromq3 prometheus-cpp >/dev/null

common=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$directory" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_C_FLAGS="-ffile-prefix-map=$work=." -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$work=.")
if [ -n "$triple" ]; then
  common+=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="${triple%%-*}" -DCMAKE_C_COMPILER="$triple-gcc" -DCMAKE_CXX_COMPILER="$triple-g++")
fi
build() { # NAME SOURCE options...
  cmake -S "$2" -B "$work/$1" "${common[@]}" "${@:3}" >"$work/$1.log" 2>&1 && cmake --build "$work/$1" --target install >>"$work/$1.log" 2>&1 ||
    { cat "$work/$1.log" >&2; exit 1; }
}
build zmq "$(echo zeromq3-*/)" -DBUILD_SHARED=OFF -DBUILD_STATIC=ON -DBUILD_TESTS=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF -DENABLE_CURVE=OFF \
  -DWITH_LIBSODIUM=OFF -DWITH_LIBBSD=OFF -DENABLE_DRAFTS=OFF -DWITH_OPENPGM=OFF -DWITH_NORM=OFF -DZMQ_BUILD_FRAMEWORK=OFF -DENABLE_WS=OFF
build prometheus "$(echo prometheus-cpp-*/)" -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_TESTING=OFF -DENABLE_COMPRESSION=OFF -DUSE_THIRDPARTY_LIBRARIES=OFF
# What they are, for the bill of materials.
for file in *.dsc; do sed -n 's/^Source: //p;s/^Version: //p' "$file" | paste -sd' '; done | sort >"$directory/versions"
for folder in */debian; do cp "$folder/copyright" "$directory/$(sed -n '1s/ .*//p' "$folder/changelog").copyright"; done
touch "$directory/complete"
