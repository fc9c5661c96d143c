// SPDX-License-Identifier: Apache-2.0
// Which base model an adapter says it was made for.
//
// Pure, any thread.
#pragma once

#include <string_view>

namespace loralei {

// Whether the name that an adapter has for its base and one of the base at hand can mean
// one model. Names are paths, names of a hub ("org/name") or folders of a hub's cache;
// their last part counts, without case, and without what says only how the numbers are
// stored ("-Q4_K_M.gguf", "-bnb-4bit").
bool same_base(std::string_view of_adapter, std::string_view of_base);

}  // namespace loralei
