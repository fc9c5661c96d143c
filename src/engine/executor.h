// SPDX-License-Identifier: Apache-2.0
// Executor: who computes a step. A seam with a simulated twin (mechanisms §9): the host
// executor runs the model on this machine's CPUs.
//
// A step is a value (step_batch.h). What it names, the executor has been told of before:
// the adapters by announce(), until withdraw(), the KV memory by use_kv(), and the states
// of sequences by use_states().
// Thread: the engine's. The call given to on_done() may be called on any thread, and
// within start() by an executor that computes there.
// Ownership: an announced adapter is borrowed until it is withdrawn, which is just before
// it leaves memory; the batch until its step has ended.
// Invariants: one step at a time; each start() ends in one StepDone. A row's result
// depends on its own tokens, adapters and KV alone. A version that was not announced is a
// defect (CHECK).
// Failure: StepDone's status.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "base/arrivals.h"
#include "base/check.h"
#include "engine/device_tier.h"
#include "engine/step_batch.h"
#include "kv/state_pool.h"
#include "model/model.h"
#include "sched/cold_start.h"

namespace loralei {

class Executor {
 public:
  virtual ~Executor() = default;
  // --- before the first step
  void on_done(std::function<void(StepDone&&)> call) { on_done_ = std::move(call); }
  // Where blocks, and what they hold beside K and V, lie in host memory. Not called where
  // kv_blocks() has some.
  virtual void use_kv(const KvView&, const KvStreams&) {}
  // Where the states of sequences lie, which steps bring up to date; of a model that
  // keeps some. A step that fails leaves those of its groups as they may be.
  virtual void use_states(const StateView&) {}

  // --- between steps
  // Steps may name it until it is withdrawn; once more says nothing new.
  virtual void announce(const Adapter& adapter) = 0;
  // The same of one that is being read into host memory: steps wait for its layers, and
  // no result is given before all are there. Where begins_early().
  virtual void announce_early(const Adapter&, std::shared_ptr<const Arrivals>) { CHECK(false); }
  virtual bool begins_early() const { return false; }
  // What helper processes could do for a prompt with this adapter, which is announced and
  // on its way to the executor's own memory; they are told of it.
  virtual AssistOffer assist_with(const Adapter&) { return {}; }
  struct AssistState {
    int32_t helpers = 0;
    int32_t rows = 0;  // of a step, that they can take
    uint64_t restarts = 0;
  };
  virtual AssistState assist_state() const { return {}; }
  // Of an executor that keeps to a pace (pace.h).
  struct PaceState {
    std::string_view profile;  // its name; empty: steps take what they take
    uint64_t late_steps = 0;
    double late_s = 0;
  };
  virtual PaceState pace() const { return {}; }
  virtual void withdraw(AdapterVersionId version) = 0;
  // Rows of `vocab` logits fit the results of coming steps; those of the last one are
  // gone, unless they had room for so many. An error: there is no memory for that.
  virtual Status reserve_vocab(int32_t vocab) = 0;
  // Ends as a StepDone.
  virtual void start(const StepBatch& batch) = 0;
  // Of a step that ended well, until the next start().
  virtual StepResult result() const = 0;
  // Asked between steps while there are requests, and at once where a step or a change of
  // the budget has failed. An error says why nothing can be computed now: all requests
  // end with it, and it is asked again about once a second, whether there are others or
  // not, until it is ok.
  virtual Status ready() { return {}; }
  // No step follows the last one at once.
  virtual void idle() {}
  // Whether steps may use the adapter; an error ends the request that asked for it,
  // before any step.
  virtual Status accepts(const Adapter&) const { return {}; }
  // Where adapters must be for a step to use them; null: in host memory.
  virtual DeviceTier* device_tier() { return nullptr; }
  // Of a cache of its own, which steps use; 0: none.
  virtual int32_t kv_blocks() const { return 0; }
  virtual int64_t adapter_bytes() const { return 0; }  // of copies of adapters in a memory of its own
  virtual const ModelLimits& limits() const = 0;       // the engine plans within them
  // Takes StepBatch::choices, so that logits stay where they are.
  virtual bool chooses_tokens() const { return false; }
  virtual ModelTimes times() const { return {}; }  // since it was made
  // Of weights read from disk in every step, whatever its rows: where there are some,
  // rows more are nearly free.
  virtual int64_t streamed_bytes() const { return 0; }
  bool streams() const { return streamed_bytes() > 0; }

 protected:
  void end_step(StepDone&& done) const { on_done_(std::move(done)); }

 private:
  std::function<void(StepDone&&)> on_done_;
};

// `model` was created with `limits` and outlives the executor, as does `ledger`, which
// grants its results. `ready`: Executor::ready(); empty: it always is.
std::unique_ptr<Executor> make_host_executor(Model& model, const ModelLimits& limits, Ledger& ledger,
                                             std::function<Status()> ready = {});

}  // namespace loralei
