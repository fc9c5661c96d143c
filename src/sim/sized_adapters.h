// SPDX-License-Identifier: Apache-2.0
// SizedAdapters: adapters that have a size and a rank, and no numbers; SimulatedLoads:
// the loader threads that bring them into memory at the pace of a disk.
//
// Thread: one. Ownership: loads borrow the kernel, the adapters and the faults. Failure:
// an adapter that was told to fail answers as a broken file does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "adapters/load_pool.h"
#include "cost/profile.h"
#include "sim/faults.h"
#include "sim/kernel.h"

namespace loralei::sim {

struct SizedAdapter {
  int64_t bytes = 0;
  int32_t rank = 0;
  std::optional<Error> broken;  // what a load says
};

class SizedAdapters {
 public:
  // By path. The place in the order of being added is its content.
  void add(const std::string& path, SizedAdapter adapter);
  SizedAdapter& find(const std::string& path) { return adapters_.at(path).adapter; }
  AdapterSource source();

 private:
  struct Placed {
    SizedAdapter adapter;
    uint64_t content = 0;
  };
  std::map<std::string, Placed> adapters_;
};

class SimulatedLoads {
 public:
  using Done = std::function<void(LoadDone&&)>;
  SimulatedLoads(Kernel& kernel, const TransferCost& disk, SizedAdapters& adapters, Faults& faults, Done done)
      : kernel_(kernel),
        disk_(disk),
        adapters_(adapters),
        faults_(faults),
        source_(adapters.source()),
        done_(std::move(done)) {}

  // As LoadPool::start. A look at the stamp costs nothing, a read what the disk takes.
  bool start(LoadJob&& job);

 private:
  Kernel& kernel_;
  const TransferCost disk_;
  SizedAdapters& adapters_;
  Faults& faults_;
  AdapterSource source_;
  const Done done_;
};

}  // namespace loralei::sim
