#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source is as clang-format 14 (Debian 12) leaves it; other versions format otherwise, so without that one it is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
format=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$format" ] || ! "$format" --version | grep -q ' version 14\.'; then
  echo "skipped: clang-format 14 is missing (apt-get install clang-format-14)"
  exit 77
fi
[ -e .git ] || { echo "skipped: no checkout, so nothing tells which files are sources"; exit 77; }
git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' ':!third_party' |
  xargs -0 -n 16 -P "$(nproc)" "$format" --dry-run --Werror
