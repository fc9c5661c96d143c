// SPDX-License-Identifier: Apache-2.0
// Strong ids: two kinds of number that must not be mixed are two types.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace loralei {

template <typename Tag, typename Rep = uint32_t>
struct StrongId {
  Rep value = 0;
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
};

struct RequestTag;
struct SeqTag;
struct AdapterTag;
struct AdapterSourceTag;
using RequestId = StrongId<RequestTag, uint64_t>;              // never reused in a process
using SeqId = StrongId<SeqTag, uint64_t>;                      // one choice of a request; never reused
using AdapterVersionId = StrongId<AdapterTag, uint64_t>;       // one immutable loaded copy; never reused; 0 = none
using AdapterSourceId = StrongId<AdapterSourceTag, uint64_t>;  // where its files are; never reused; 0 = none
using TokenId = int32_t;

}  // namespace loralei

template <typename Tag, typename Rep>
struct std::hash<loralei::StrongId<Tag, Rep>> {
  size_t operator()(loralei::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
