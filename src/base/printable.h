// SPDX-License-Identifier: Apache-2.0
// printable(): text from outside (names, paths, what files and headers say) as one
// line that a terminal, a log and a JSON string can hold. Everything that the program
// logs goes through it.
//
// Pure; any thread.
// Invariants: the result is valid UTF-8 of at most `bytes_max` bytes, without control
// characters, line ends or what changes the direction or hides parts of the text around
// it; those are written as \n, \x1b or \u202e, bytes that are no UTF-8 as \xff. What is
// printable already stays as it is, backslashes too, so that text which passes twice is
// that of the first time.
// Failure: none; what is longer is cut between two characters and ends
// with " ...".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace loralei {

inline constexpr size_t kPrintableBytes = 8192;  // longer than any sentence of ours
std::string printable(std::string_view text, size_t bytes_max = kPrintableBytes);
// Whether printable() leaves it as it is.
bool is_printable(std::string_view text, size_t bytes_max = kPrintableBytes);

}  // namespace loralei
