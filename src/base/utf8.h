// SPDX-License-Identifier: Apache-2.0
// UTF-8 as RFC 3629 has it: no overlong form, no surrogate, nothing above U+10FFFF. Pure functions. Failure: none.
#pragma once

#include <cstddef>
#include <string_view>

namespace loralei {

// Length of the valid sequence at text[at], 0 if there is none.
size_t utf8_sequence_length(std::string_view text, size_t at);
bool is_valid_utf8(std::string_view text);

}  // namespace loralei
