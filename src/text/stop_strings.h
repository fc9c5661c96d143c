// SPDX-License-Identifier: Apache-2.0
// StopMatcher: finds stop strings in text that comes in parts, across tokens
// and code points.
//
// Thread: compiled strings are immutable, for any number of matchers at once; a matcher
// is for one sequence on one thread.
// Ownership: matchers share the compiled strings.
// Invariants: text that may be the beginning of a stop string is held back; all emitted
// text is the input up to the first stop string (that ends first; of several that end at
// the same place the longest), or all of the input after flush(). Emitted parts are cut
// at code points when the input's parts are.
// Failure: none.
// Cost: O(bytes) amortised per stop string (Knuth-Morris-Pratt).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/kmp.h"

namespace loralei {

using StopStrings = std::vector<KmpPattern>;
// Empty ones are left out: they would stop before the first character.
std::shared_ptr<const StopStrings> compile_stop_strings(std::vector<std::string> stops);

class StopMatcher {
 public:
  // `stops` is not null.
  StopMatcher(std::shared_ptr<const StopStrings> stops, bool include_stop);

  struct Output {
    std::string text;                   // safe to emit
    const std::string* stop = nullptr;  // the stop string that was found, one of the compiled
  };
  // After a stop nothing more comes out.
  Output push(std::string_view text);
  // The text held back, when the sequence ends without a stop.
  std::string flush();

 private:
  std::shared_ptr<const StopStrings> stops_;
  std::vector<uint32_t> matched_;  // by stop string: bytes of it that the input so far ends with
  bool include_stop_;
  bool stopped_ = false;
  std::string held_;  // input not emitted yet
};

}  // namespace loralei
