// SPDX-License-Identifier: Apache-2.0
// StopMatcher: finds stop strings in text that comes in parts, across tokens and code points.
//
// Thread: one sequence, one thread. Ownership: owns copies of the stop strings. Invariants: text that may be the
// beginning of a stop string is held back; all emitted text is the input up to the first stop string (that ends first;
// of several that end at the same place the longest), or all of the input after flush(). Emitted parts are cut at code
// points when the input's parts are. Failure: none. Cost: O(bytes) amortised per stop string (Knuth-Morris-Pratt).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/kmp.h"

namespace loralei {

class StopMatcher {
 public:
  // Empty stop strings are left out: they would stop before the first character.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  struct Output {
    std::string text;  // safe to emit
    bool stopped = false;
    int which = -1;  // index of the stop string in the constructor's list
  };
  // After a stop nothing more comes out.
  Output push(std::string_view text);
  // The text held back, when the sequence ends without a stop.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  struct Stop {
    KmpPattern pattern;
    int index;
    uint32_t matched = 0;  // bytes of the pattern that the input so far ends with
  };
  std::vector<Stop> stops_;
  bool include_stop_;
  bool stopped_ = false;
  std::string held_;  // input not emitted yet
};

}  // namespace loralei
