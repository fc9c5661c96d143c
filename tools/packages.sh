#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# packages.sh [OUTPUT_DIRECTORY]: builds the portable program (build-portable) and its packages: an archive, a package of Debian
# and a wheel of Python, into build/packages, with their bill of materials. The same commit gives the same bytes, wherever it lies and whenever it is built (tools/reproducible.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-build/packages}"
output=$(cd "${1:-build/packages}" && pwd)
# Files carry the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
tools/build.sh portable -- loralei
rm -f "$output"/loralei*
packaging/tarball.sh build-portable "$output"
packaging/sbom.py build-portable build-portable/loralei -o "$output/loralei.sbom.cdx.json"
packaging/python/build_wheel.py --sbom "$output/loralei.sbom.cdx.json" -o "$output"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
umask 022
(cd build-portable && cpack -G DEB -B "$output") >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
rm -rf "$output/_CPack_Packages"
ls "$output"/*.deb
