// SPDX-License-Identifier: Apache-2.0
// StepGraphs: recorded steps by shape. A shape's first step is launched kernel by kernel
// (what a driver loads or sizes at a kernel's first launch is then there), its second is
// recorded, and all later ones launch the record.
//
// Thread: the model's, on one stream.
// Ownership: owns the graphs; what they address (tables, activations, weights, the
// cache named in the shape) belongs to others and stays where it is.
// Invariants: run() is called when no other step's work is on the stream, so a graph
// that goes is not running; at most graphs_max shapes have a graph and as many others
// are remembered, the least recently used go first; no allocation once a step's
// shape has its graph.
// Failure: a shape whose recording or launch the driver refuses is launched kernel by
// kernel for good, and when graphs_max shapes were refused nothing is recorded any more;
// the first refusal is logged and kept. What the launches themselves answer is answered,
// and so is that the device is lost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "model/cuda/step_shape.h"

namespace loralei {

class StepGraphs {
 public:
  // graphs_max 0: nothing is recorded. `log` may be null, else it outlives this.
  explicit StepGraphs(int32_t graphs_max = 0, LogSink* log = nullptr);

  // Puts a step on the stream; launches() puts its kernels there one by one and is
  // called at most twice.
  template <typename Launches>
  Status run(const StepShape& shape, CudaStream& stream, Launches&& launches) {
    Entry* const entry = find(shape);
    if (entry == nullptr) return launches();
    if (entry->graph.empty()) {
      if (Status recorded = record(*entry, stream, launches); !recorded.ok()) {
        if (is_device_lost(recorded)) return recorded;
        refuse(*entry, recorded.error());
        return launches();
      }
      ++recorded_;
    }
    if (Status launched = entry->graph.launch(stream); !launched.ok()) {
      if (is_device_lost(launched)) return launched;
      refuse(*entry, launched.error());
      return launches();
    }
    ++launched_;
    return {};
  }

  int64_t recorded() const { return recorded_; }           // graphs made so far
  int64_t launched() const { return launched_; }           // steps run as a graph so far
  int32_t held() const;                                    // graphs there are now
  const std::string& refusal() const { return refusal_; }  // the first; empty: none

 private:
  enum class State : uint8_t { kSeen, kRecorded, kRefused };
  struct Entry {
    StepShape shape;
    uint64_t hash = 0, used = 0;
    State state = State::kSeen;
    CudaGraph graph;
  };
  // The entry to record into or to launch; null: launch plainly.
  Entry* find(const StepShape& shape);
  // The least recently used one of a state.
  Entry* oldest(State state);
  int32_t count(State state) const;
  void remember(const StepShape& shape, uint64_t hash);
  void refuse(Entry& entry, const Error& why);
  template <typename Launches>
  static Status record(Entry& entry, CudaStream& stream, Launches& launches) {
    TRY(entry.graph.begin_capture(stream));
    Status launched = launches();
    const Status ended = entry.graph.end_capture(stream);  // whatever happened, the stream launches again after it
    TRY(launched);
    return ended;
  }

  int32_t graphs_max_ = 0;
  LogSink* log_ = nullptr;
  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
  int64_t recorded_ = 0, launched_ = 0;
  std::string refusal_;
};

}  // namespace loralei
