// SPDX-License-Identifier: Apache-2.0
// Executor: who computes a step. A seam with a simulated twin (mechanisms §9): the host
// executor runs the model on this machine's CPUs.
//
// Thread: execute() is called by the engine thread only and returns when the step is
// computed. Ownership: borrows the batch for the call. Invariant: a row's result depends
// on its own tokens, adapters and KV alone. Failure: execute() answers a sentence;
// nothing of the step counts. kUnavailable: it can compute nothing any more, whatever the
// step (a device that is lost).
#pragma once

#include <functional>
#include <memory>

#include "engine/device_tier.h"
#include "model/model.h"

namespace loralei {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual Status execute(const ModelBatch& batch, const KvView& kv) = 0;
  // Asked between steps while there are requests, and at once where a step or a change of
  // the budget has failed. An error says why nothing can be computed now: all requests
  // end with it, and it is asked again about once a second, whether there are others or
  // not, until it is ok.
  virtual Status ready() { return {}; }
  // Whether steps may use the adapter; an error ends the request that asked for it,
  // before any step.
  virtual Status accepts(const Adapter&) const { return {}; }
  // Where adapters must be for a step to use them; null: in host memory.
  virtual DeviceTier* device_tier() { return nullptr; }
  // Of a cache of its own, which steps use instead of the view they are given; 0: none.
  virtual int32_t kv_blocks() const { return 0; }
  virtual int64_t adapter_bytes() const { return 0; }  // of copies of adapters in a memory of its own
  virtual const ModelLimits& limits() const = 0;       // the engine plans within them
  // Takes ModelBatch::choices, so that logits stay where they are.
  virtual bool chooses_tokens() const { return false; }
  virtual ModelTimes times() const { return {}; }  // since it was made
  // Of weights read from disk in every step, whatever its rows: where there are some,
  // rows more are nearly free.
  virtual int64_t streamed_bytes() const { return 0; }
  bool streams() const { return streamed_bytes() > 0; }
};

// `model` was created with `limits` and outlives the executor. `ready`:
// Executor::ready(); empty: it always is.
std::unique_ptr<Executor> make_host_executor(Model& model, const ModelLimits& limits,
                                             std::function<Status()> ready = {});

}  // namespace loralei
