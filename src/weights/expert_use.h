// SPDX-License-Identifier: Apache-2.0
// ExpertUse: the matrices of the experts that a layer's rows have chosen, handed out in
// the order that the store finds best: those in memory first and together, then others
// as they are read (expert_cache.h).
//
//   ExpertUse use(store, experts of the layer, chosen, room);
//   while (use.next()) for (const ExpertView& expert : use.views()) ...
//
// Who computes must not depend on that order.
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
  WeightView gate, up, down;
};

class [[nodiscard]] ExpertUse {
 public:
  // `chosen`: ascending, each once. `room`: for as many views. What is to be read is
  // asked for at once: who has other work does it before the first next().
  ExpertUse(WeightStore& store, std::span<const ExpertSlots> experts, std::span<const int32_t> chosen,
            std::span<ExpertView> room);
  ~ExpertUse();
  ExpertUse(const ExpertUse&) = delete;
  ExpertUse& operator=(const ExpertUse&) = delete;

  // The next round; false: all have been handed out.
  Result<bool> next();
  std::span<const ExpertView> views() const { return views_; }

 private:
  Result<bool> next_cached();
  void end();
  ExpertView view_of(int32_t expert) const;

  WeightStore& store_;
  const std::span<const ExpertSlots> experts_;
  const std::span<const int32_t> chosen_;
  const std::span<ExpertView> room_;
  std::span<const ExpertView> views_;
  bool began_ = false;   // what is resident was handed out
  bool cached_ = false;  // the cache is in this use
};

}  // namespace loralei
