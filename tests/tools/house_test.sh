#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# house_test.sh CHECK_INCLUDES: what tools/house_rules.h refuses, in a small project made for it, and what it lets pass.
set -euo pipefail
check=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/tools" "$root/src/base" "$root/tests"
printf 'base:\n---\n' >"$root/tools/rooms.txt"

run() { "$check" "$root" >"$root/output" 2>&1; }
passes() {
  run && return
  echo "house_test: $1 is refused:" >&2
  cat "$root/output" >&2
  exit 1
}
refuses() { # WHAT SENTENCE
  if ! run && grep -qF -- "$2" "$root/output"; then return; fi
  echo "house_test: $1: no \"$2\" in" >&2
  cat "$root/output" >&2
  exit 1
}
source_file() { { echo "// SPDX-License-Identifier: Apache-2.0"; cat; } >"$root/$1"; }
header() { { echo "#pragma once"; cat; } | source_file "$1"; }
repeat() { for ((i = 0; i < $1; ++i)); do printf '%s' "$2"; done; }
body() { repeat "$1" $'  ++x;\n'; }  # so many lines

# --- functions
{ echo "int f(int x) {"; body 68; echo "}"; } | source_file src/base/a.cc
passes "a function of 70 lines"
{ echo "int f(int x) {"; body 69; echo "}"; } | source_file src/base/a.cc
refuses "one of 71" "src/base/a.cc:2: f has 71 lines, 70 at most"
echo "src/base/a.cc f 71" >"$root/tools/long_functions.txt"
passes "one of 71 that is listed"
echo "src/base/a.cc f 72" >"$root/tools/long_functions.txt"
refuses "a number that is too high" "f has 71 lines now, not 72: lower the number"
{ echo "int f(int x) {"; body 70; echo "}"; } | source_file src/base/a.cc
echo "src/base/a.cc f 71" >"$root/tools/long_functions.txt"
refuses "a listed one that grew" "f has 72 lines, 71 at most"
{ echo "int f(int x) {"; body 3; echo "}"; } | source_file src/base/a.cc
refuses "an entry that is not needed" "src/base/a.cc f is not that long any more: remove the line"
echo "src/base/gone.cc f 71" >"$root/tools/long_functions.txt"
refuses "an entry without a file" "src/base/gone.cc f: no such file: remove the line"
rm "$root/tools/long_functions.txt"

{
  echo "namespace n {"
  echo "struct Row {"
  echo "  Row(int a, int b)"
  echo "      : a_{a}, b_(b) {"
  body 68
  echo "  }"
  echo "};"
  echo "const char* kText[] = {"
  repeat 80 $'    "{ (",  // { (\n'
  echo "};"
  echo 'const char* kRaw = R"x('
  repeat 80 $'f() {\n'
  echo ')x";'
  echo "}  // namespace n"
} | source_file src/base/a.cc
refuses "a constructor, and nothing else" "Row::Row has 71 lines, 70 at most"
[ "$(wc -l <"$root/output")" = 2 ] || { cat "$root/output" >&2; exit 1; }
{
  echo "TEST_P(Rows, Add) {"
  echo "  run([](int x) {"
  body 68
  echo "  });"
  echo "}"
} | source_file src/base/a_test.cc
rm "$root/src/base/a.cc"
refuses "a test with a long lambda" "Rows.Add has 72 lines, 70 at most"
rm "$root/src/base/a_test.cc"

# --- types
header src/base/a.h <<<"namespace n { struct Row { int x; }; }  // namespace n"
header src/base/b.h <<<"namespace n { enum class Row { kA }; }  // namespace n"
refuses "a type with two meanings" "src/base/b.h:3: n::Row is defined in src/base/a.h too"
header src/base/b.h <<<"namespace n { template <typename T> using Row = T; }  // namespace n"
refuses "an alias of a type's name" "n::Row is defined in src/base/a.h too"
header src/base/b.h <<'E2'
namespace n::m {
struct Row {};
}  // namespace n::m
namespace n {
struct Row;
struct Table {
  struct Row {};
};
namespace {
struct Row {};
}  // namespace
}  // namespace n
E2
passes "a nested type, a declaration, another namespace, none"
rm "$root/src/base/b.h"
source_file src/base/b.inl.h <<<"namespace n { struct Row {}; }  // namespace n"
passes "a body that is included somewhere"
rm "$root/src/base/a.h" "$root/src/base/b.inl.h"

# --- comments
wide="// $(repeat 88 x)"  # 91 columns
source_file src/base/a.cc <<<"$wide"
refuses "a wide comment" "src/base/a.cc:2: comment of 91 columns: lay it anew in 90"
source_file src/base/a.cc <<<"${wide%x}"
passes "a comment of 90 columns"
source_file src/base/a.cc <<<"// $(repeat 87 §)"
passes "90 columns in more bytes"
source_file src/base/a.cc <<<"  ${wide%x}"
refuses "a comment that is wide with its indentation" "comment of 92 columns"
source_file src/base/a.cc <<<"int x;  $wide"
passes "a comment behind code"
source_file src/base/a.cc <<<"int x;  $wide$wide"
refuses "one beyond the line" "comment behind code beyond column 120: lay it above"
printf 'const char* kRaw = R"(\n%s)";\n' "$wide" | source_file src/base/a.cc
passes "text that looks like a comment"
source_file src/base/a.cc </dev/null
source_file tests/a_test.cc <<<"$wide"
refuses "a wide comment of a test" "tests/a_test.cc:2: comment of 91 columns"
echo "tests/a_" >"$root/tools/wide_comments.txt"
passes "one that is listed"
source_file tests/a_test.cc </dev/null
refuses "an entry that is not needed" "no wide comment in 'tests/a_' any more: remove the line"
echo "house_test: all as it should be"
