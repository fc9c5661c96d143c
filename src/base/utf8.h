// SPDX-License-Identifier: Apache-2.0
// UTF-8: validity, decoding, repair, and the assembler that turns a stream of bytes into
// whole code points.
//
// Thread: free functions are pure; a Utf8Assembler belongs to one thread.
// Ownership: plain values.
// Invariants: valid means RFC 3629: no overlong form, no surrogate, nothing above
// U+10FFFF. A broken sequence counts as one U+FFFD per maximal subpart (Unicode 15,
// section 3.9), as Python's errors="replace" and Rust's from_utf8_lossy do.
// Failure: none; bad bytes are repaired or reported by the return value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace loralei {

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  char32_t code_point = 0xFFFD;
  int length = 1;  // bytes of the code point, or of the maximal broken subpart
  bool valid = false;
  bool truncated = false;  // broken only because the text ends here
};

// The step at text[pos]; pos < text.size().
Utf8Step utf8_step(std::string_view text, size_t pos);
// Length of the valid sequence at text[at], 0 if there is none.
size_t utf8_sequence_length(std::string_view text, size_t at);
bool is_valid_utf8(std::string_view text);
// Of a valid text.
std::u32string utf8_decode(std::string_view text);
void utf8_append(std::string& out, char32_t code_point);
// Every maximal broken subpart becomes U+FFFD.
std::string utf8_repair(std::string_view bytes);

// Bytes in, whole code points out: an unfinished sequence waits for its rest, a broken
// one becomes U+FFFD at once.
class Utf8Assembler {
 public:
  void push(std::string_view bytes, std::string& out);
  // Unfinished bytes become one U+FFFD.
  void flush(std::string& out);
  bool pending() const { return !held_.empty(); }

 private:
  std::string held_;  // at most 3 bytes
};

}  // namespace loralei
