// SPDX-License-Identifier: Apache-2.0
// KvLending: how many of the base's layers each adapter may read instead of its own
// (`loralei calibrate-kv --adapter`), and the levels at which the base's residual stream
// is kept for them, so that their prefills can begin there (mechanisms §5, borrowing).
//
// Thread: a value; pure functions. No failure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/digest.h"
#include "codec/kv_steps.h"
#include "ops/kv_streams.h"

namespace loralei {

struct KvLending {
  KvStreamShape streams;
  std::map<std::string, int32_t, std::less<>> layers;  // by a version's digest_hex; 1 and more, a level or all

  bool empty() const { return layers.empty(); }
  int32_t layers_of(const Digest& version) const;  // 0: it reads its own alone
};

// As many as were measured; where these are more than kLevelsMost different ones, the
// next lower that is a level. `hidden`: of the stream.
KvLending kv_lending(const KvSteps& steps, int32_t hidden);

}  // namespace loralei
