#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tarball.sh [BUILD_DIRECTORY] [OUTPUT_DIRECTORY]: the archive of a portable build (default build-portable). The same build gives the
# same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-portable}
output=${2:-$build}
cached() { sed -n "s/^$1:.*=//p" "$build/CMakeCache.txt"; }
machine=$(cached CMAKE_SYSTEM_PROCESSOR)
version=$(cached CMAKE_PROJECT_VERSION)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

name=loralei-$version-linux-${machine:-$(uname -m)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
DESTDIR=$work cmake --install "$build" --prefix "/$name" >/dev/null
# What somebody looks for first.
for page in README.md LICENSE THIRD_PARTY.md; do mv "$work/$name/share/doc/loralei/$page" "$work/$name/$page"; done
mkdir -p "$output"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=ustar -cf - "$name" |
  gzip -9n >"$output/$name.tar.gz"
echo "$output/$name.tar.gz"
