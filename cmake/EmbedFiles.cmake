# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=FILE.cc -DFILES=a;b;... -P EmbedFiles.cmake: a source that defines embedded_files() of dashboard/files.h.
# Compilers bound a literal's length, so a file is a row of them, which the compiler joins.
set(piece_bytes 8000)
set(rows "")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} text)
  string(REGEX MATCH "[^\t\n -~]" strange "${text}")
  if(NOT strange STREQUAL "")
    message(FATAL_ERROR "${file} holds a byte that is no printable ASCII: write it as an escape")
  endif()
  if(text MATCHES "\\)~~\"")
    message(FATAL_ERROR "${file} holds the end of a raw string literal")
  endif()
  string(LENGTH "${text}" length)
  set(literals "")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} ${piece_bytes} piece)
    string(APPEND literals "\n     R\"~~(${piece})~~\"")
    math(EXPR at "${at} + ${piece_bytes}")
  endwhile()
  string(APPEND rows "    {\"${name}\",${literals}},\n")
endforeach()
file(WRITE ${OUT} "// Made by cmake/EmbedFiles.cmake.
#include \"dashboard/files.h\"

namespace loralei {
namespace {

constexpr EmbeddedFile kFiles[] = {
${rows}};

}  // namespace

std::span<const EmbeddedFile> embedded_files() { return kFiles; }

}  // namespace loralei
")
