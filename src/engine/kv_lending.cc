// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_lending.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace loralei {

int32_t KvLending::layers_of(const Digest& version) const {
  if (layers.empty()) return 0;
  const auto found = layers.find(digest_hex(version));
  return found == layers.end() ? 0 : found->second;
}

KvLending kv_lending(const KvSteps& steps, int32_t hidden) {
  std::set<int32_t> depths;
  for (const KvAdapterSteps& adapter : steps.adapters) {
    if (adapter.borrow_layers > 0 && adapter.borrow_layers < steps.layers) depths.insert(adapter.borrow_layers);
  }
  KvLending lending;
  // At even distances among them, from the lowest on: each adapter finds one.
  const size_t most = KvStreamShape::kLevelsMost, count = std::min(depths.size(), most);
  for (size_t level = 0; level < count; ++level) {
    lending.streams.layers[level] =
        *std::next(depths.begin(), static_cast<std::ptrdiff_t>(level * depths.size() / count));
  }
  lending.streams.levels = static_cast<int32_t>(count);
  for (const KvAdapterSteps& adapter : steps.adapters) {
    int32_t reads = adapter.borrow_layers >= steps.layers ? steps.layers : 0;
    for (size_t level = 0; level < count && reads < steps.layers; ++level) {
      if (lending.streams.layers[level] <= adapter.borrow_layers) reads = lending.streams.layers[level];
    }
    if (reads > 0) lending.layers[adapter.digest] = reads;
  }
  lending.streams.dim = lending.layers.empty() ? 0 : hidden;
  return lending;
}

}  // namespace loralei
