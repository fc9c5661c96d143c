// SPDX-License-Identifier: Apache-2.0
// UTF-8: validity, decoding, repair, and the assembler that turns a stream of bytes into whole code points.
//
// Thread: free functions are pure; a Utf8Assembler belongs to one thread. Ownership: plain values.
// Invariants: valid means RFC 3629: no overlong form, no surrogate, nothing above U+10FFFF. A broken sequence counts
// as one U+FFFD per maximal subpart (Unicode 15, section 3.9), as Python's errors="replace" and Rust's from_utf8_lossy
// do.
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
bool utf8_valid(std::string_view text);
void utf8_append(std::string& out, char32_t code_point);
// Every maximal broken subpart becomes U+FFFD.
std::string utf8_repair(std::string_view bytes);

// Bytes in, whole code points out: an unfinished sequence waits for its rest, a broken one becomes U+FFFD at once.
class Utf8Assembler {
 public:
  void push(std::string_view bytes, std::string& out);
  // Unfinished bytes become one U+FFFD.
  void flush(std::string& out);
  bool pending() const { return !held_.empty(); }

 private:
  std::string held_;  // at most 3 bytes
};

// Character classes as the reference tokenizers (Rust's char and regex) define them.
bool is_unicode_space(char32_t c);        // White_Space
bool is_unicode_number(char32_t c);       // Nd, Nl, No
bool is_unicode_punctuation(char32_t c);  // P*, and all of ASCII's punctuation
bool is_unicode_mark(char32_t c);         // M*
bool is_unicode_word(char32_t c);         // the regex class \w: Alphabetic, M, Nd, Pc, Join_Control

}  // namespace loralei
