// SPDX-License-Identifier: Apache-2.0
// ExpertUse: the matrices of the experts that a layer's rows have chosen, handed out in
// the order that the store finds best: those in memory first and together, one round.
//
//   ExpertUse use(store, experts of the layer, chosen, room);
//   while (use.next()) for (const ExpertView& expert : use.views()) ...
//
// Who computes must not depend on that order. An expert whose matrices lie in memory has
// whole views. One of which something is streamed comes alone in a round, without views,
// and its matrices are used through a WeightUse each, in the order gate and up, down,
// before next() is called again; experts that nobody chose are passed over on the way,
// which reads them, because a pass meets all that is streamed.
//
// Thread: the executor's. Ownership: borrows the store and the caller's lists; views are
// valid until the next round. Failure: what reading failed of.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "tensor/weight_view.h"
#include "weights/weight_store.h"

namespace loralei {

// The matrices of an expert: gate, up, down.
using ExpertSlots = std::array<TensorSlot, 3>;

struct ExpertView {
  int32_t expert = 0;
  bool streamed = false;  // no views: see above
  WeightView gate, up, down;
};

class [[nodiscard]] ExpertUse {
 public:
  // `chosen`: ascending, each once. `room`: for as many views.
  ExpertUse(WeightStore& store, std::span<const ExpertSlots> experts, std::span<const int32_t> chosen,
            std::span<ExpertView> room);
  ExpertUse(const ExpertUse&) = delete;
  ExpertUse& operator=(const ExpertUse&) = delete;

  // The next round; false: all have been handed out, and what is streamed of the layer's
  // experts lies behind.
  Result<bool> next();
  std::span<const ExpertView> views() const { return views_; }

 private:
  bool is_resident(const ExpertSlots& expert) const;
  Status pass_over(const ExpertSlots& expert);

  WeightStore& store_;
  const std::span<const ExpertSlots> experts_;
  const std::span<const int32_t> chosen_;
  const std::span<ExpertView> room_;
  std::span<const ExpertView> views_;
  bool began_ = false;
  size_t expert_ = 0;       // which comes next of those of the layer
  size_t next_chosen_ = 0;  // in chosen_, at or behind it
};

}  // namespace loralei
