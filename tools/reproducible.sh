#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# reproducible.sh: builds the packages of the commit that is checked out a second time, in another folder and without a compiler cache, and
# says whether they have the same bytes as those in build/packages.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
if [ -n "$(git status --porcelain)" ]; then
  echo "reproducible: there are changes that no commit has; only commits can be compared." >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/packages.sh >/dev/null
git clone -q "$here" "$work/another-place"
(cd "$work/another-place" && CCACHE_DISABLE=1 tools/packages.sh "$work/packages" >/dev/null)
(cd "$work/packages" && sha256sum *) >"$work/sums"
cd build/packages
if sha256sum --check "$work/sums"; then
  echo "reproducible: the same bytes, built at two places"
else
  echo "reproducible: they differ; diffoscope (from Debian) shows where" >&2
  exit 1
fi
