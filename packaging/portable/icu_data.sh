#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# icu_data.sh DIRECTORY ICUDATA_ARCHIVE [COMPILER]: a static library of ICU's data with what the program uses of it, in place of 30 MB: the
# tables of the compatible normal forms. Those of the others, of classes and of cases are in ICU's code. A form whose table were missing
# would end a start with an error (src/text/normalize.cc).
set -euo pipefail
mkdir -p "$1/lib"
target=$(cd "$1/lib" && pwd)/libicudata.a
[ ! -f "$target" ] || exit 0
compiler=${3:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=$(readlink -f "$2")
cd "$work"
ar x "$archive"
object=$(ls icudt*_dat.o)  # of little-endian machines, which all of ours are
name=${object%_dat.o}
# Of any machine; only the bytes are taken.
$(command -v "${compiler%g++}objcopy" || echo objcopy) -O binary -j .rodata "$object" all.dat
mkdir taken made
mv all.dat "$name.dat"
tools=/usr/sbin:/usr/bin
PATH=$tools:$PATH icupkg -d taken -x nfkc.nrm "$name.dat"
PATH=$tools:$PATH icupkg -s taken -a nfkc.nrm new "made/$name.dat"
PATH=$tools:$PATH genccode -a gcc -e "${name%[lb]}" -d made "made/$name.dat" >/dev/null
$compiler -c -x assembler-with-cpp "made/${name}_dat.S" -o "made/$object"
ar rcsD "$target.new" "made/$object"
mv "$target.new" "$target"
