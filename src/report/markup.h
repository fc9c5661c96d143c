// SPDX-License-Identifier: Apache-2.0
// Text from anywhere as text of HTML or XML, in an element or in a quoted attribute.
//
// Thread: any; pure. Invariants: the result is valid UTF-8 of one line without control
// characters, and holds nothing that opens or closes an element or an attribute.
// Failure: none; what is very long is cut (base/printable.h).
#pragma once

#include <string>
#include <string_view>

namespace loralei {

std::string markup_text(std::string_view text);
// Cut to so many characters, with an ellipsis where something is missing; not yet markup.
std::string shortened(std::string_view text, size_t characters);
size_t characters_of(std::string_view text);

}  // namespace loralei
