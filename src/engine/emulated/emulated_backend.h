// SPDX-License-Identifier: Apache-2.0
// --device emulated: the cores as a device at the end of a link, for tests, benches and
// sizing where there is no GPU. Adapters have to be brought to the device's memory before
// steps may use them, which takes as long as the link says; all else is as real as with
// --device cpu: the same kernels on the same threads, the same bits.
//
// Its memory is a share of what this machine has free at start (options.memory_share):
// weights, activations, KV cache and adapters' copies lie there, under a ledger of its
// own. The host's budget, for all else, is the rest; a stated one is refused where both
// are more than the machine has. So no byte counts in both. Weights are loaded there at
// once: the link is for adapters. Nothing is touched before it is used.
//
// Thread, ownership, failure: as DeviceFactory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/emulated/link.h"
#include "engine/device_backend.h"

namespace loralei {

struct EmulatedOptions {
  std::string name = "emulated";  // as users name it
  LinkSpeed link;
  double memory_share = 0.5;  // above 0, below 1
  // Tests put one that fails or stalls in its place; empty: a ThrottledLink.
  std::function<std::unique_ptr<Link>(const Clock& clock)> make_link;
  bool poison = false;  // EmulatedTierOptions
};

DeviceFactory emulated_factory(const EmulatedOptions& options);

}  // namespace loralei
