// SPDX-License-Identifier: Apache-2.0
#include "text/char_classes.h"

#include <unicode/uchar.h>

namespace loralei {

namespace {

// Whether the general category of `c` is in `mask`, a union of U_GC_*_MASK.
bool in_categories(char32_t c, uint32_t mask) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & mask) != 0; }

}  // namespace

bool is_unicode_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

bool is_unicode_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return in_categories(c, U_GC_N_MASK);
}

bool is_unicode_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  return in_categories(c, U_GC_P_MASK);
}

bool is_unicode_mark(char32_t c) { return in_categories(c, U_GC_M_MASK); }

bool is_unicode_word(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  // Letters and Nl are Alphabetic; what else is (circled letters) takes a second look-up.
  return in_categories(c, U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_NL_MASK | U_GC_PC_MASK) ||
         u_isUAlphabetic(static_cast<UChar32>(c));
}

}  // namespace loralei
