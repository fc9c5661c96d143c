// SPDX-License-Identifier: Apache-2.0
#include "sched/prompt_lookup.h"

#include <algorithm>

namespace loralei {
namespace {

constexpr int32_t kRunMin = 2, kRunMax = 4;  // last tokens looked for

// Where the text went on after an earlier occurrence of its last tokens: the longest run,
// then the latest. 0: nowhere.
int32_t after_last_occurrence(std::span<const TokenId> text) {
  const TokenId* const last = text.data() + text.size() - 1;
  int32_t longest = kRunMin - 1, found = 0;
  for (auto end = static_cast<int32_t>(text.size()) - 1; end >= kRunMin; --end) {
    const TokenId* const other = text.data() + end - 1;
    if (*other != *last) continue;
    int32_t run = 1;
    while (run < std::min(kRunMax, end) && other[-run] == last[-run]) ++run;
    if (run <= longest) continue;
    longest = run;
    found = end;
    if (run == kRunMax) break;
  }
  return found;
}

}  // namespace

std::span<const TokenId> PromptLookup::propose(std::span<const TokenId> text, const Bounds& bounds) {
  const int32_t wanted = std::min(length_, bounds.tokens_max);
  if (wanted < 1) return {};
  text = text.last(std::min<size_t>(text.size(), kWindow));
  const auto size = static_cast<int32_t>(text.size());
  const int32_t begin = after_last_occurrence(text);
  if (begin == 0) return {};
  int32_t count = 0;
  for (; count < wanted; ++count) {
    const int32_t from = begin + count;  // beyond the text: the draft repeats itself
    const TokenId token = from < size ? text[static_cast<size_t>(from)] : draft_[static_cast<size_t>(from - size)];
    if (token >= bounds.vocab || std::find(bounds.ends.begin(), bounds.ends.end(), token) != bounds.ends.end()) break;
    draft_[static_cast<size_t>(count)] = token;
  }
  return {draft_.data(), static_cast<size_t>(count)};
}

void PromptLookup::learn(int32_t drafted, int32_t accepted) {
  length_ = accepted < drafted ? accepted + 1 : std::min(2 * length_, kDraftTokensMax);
}

}  // namespace loralei
