// SPDX-License-Identifier: Apache-2.0
// Keys as they are typed. Thread: pure. Failure: a sentence, "" where a key can be used.
#pragma once

#include <string>

namespace loralei {

bool is_blank(const std::string& text);  // as "$KEY" of a variable that is not set
std::string refuse_key(const std::string& key);

}  // namespace loralei
