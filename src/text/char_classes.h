// SPDX-License-Identifier: Apache-2.0
// Character classes as the reference tokenizers (Rust's char and regex) define them.
//
// The Unicode version is that of the linked ICU: 15.0 with ICU 72. It rules the normal
// forms, lower case and grapheme clusters of normalize.h too. Thread: pure functions.
// Failure: none.
#pragma once

namespace loralei {

bool is_unicode_space(char32_t c);        // White_Space
bool is_unicode_number(char32_t c);       // Nd, Nl, No
bool is_unicode_punctuation(char32_t c);  // P*, and all of ASCII's punctuation
bool is_unicode_mark(char32_t c);         // M*
bool is_unicode_word(char32_t c);         // the regex class \w: Alphabetic, M, Nd, Pc, Join_Control

}  // namespace loralei
