// SPDX-License-Identifier: Apache-2.0
// HubWorkers: some connections to a hub that work through a list together.
//
// Thread: run() from one; the work from threads of its own, which have ended when it
// answers.
// Ownership: owns its connections, which stay open from one run() to the next.
// Invariant: the first failure stops all others soon. Failure: that of the work.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "hub/hub_connection.h"

namespace loralei {

class HubWorkers {
 public:
  using Work = std::function<Status(HubConnection&, size_t index)>;
  HubWorkers(const HubNetwork& network, int connections);

  // work(connection, i) for every i below `count`; `tick` is called by the caller's
  // thread again and again meanwhile.
  Status run(size_t count, const Work& work, const std::function<void()>& tick);
  // Set while a run() is being stopped: for the work to look at.
  const std::atomic<bool>& stop() const { return stop_; }

 private:
  std::vector<std::unique_ptr<HubConnection>> connections_;
  std::atomic<bool> stop_{false};
};

// What work answers that ends because of `stop`.
Error hub_stopped();

}  // namespace loralei
