// SPDX-License-Identifier: Apache-2.0
// LayerAssist: helper processes (assist/) as an executor uses them: which adapters they
// know, how fast they are, and what they compute of the step under way.
//
// How many helpers a prompt takes is said by a profile of one core (CaraServe §4.2,
// profiling-guided parallelisation): a slice is as many rows as make its products
// kWorkPerMessage times as long as passing it on, and a prompt of L rows takes
// ceil(L / c) helpers, as far as there are. The profile is measured at start, in this
// process, and followed by what helpers tell of themselves.
//
// Thread: the executor's.
// Ownership: owns the pool; borrows adapters in host memory from offer() to forget().
// Invariants: what helpers add is what the op table adds, bit for bit. publish() never
// waits.
// Failure: create() answers a sentence; a helper that fails is an error of collect(),
// after which the layer is computed where its adapter is.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapters/adapter.h"
#include "assist/assist_helper.h"
#include "assist/assist_pool.h"
#include "base/clock.h"
#include "base/log.h"
#include "formats/model_config.h"
#include "memory/ledger.h"
#include "model/layer_inputs.h"
#include "sched/cold_start.h"

namespace loralei {

// Helper processes that a server is to have.
struct AssistSetup {
  int32_t helpers = 0;
  bool asked_for = true;  // by who runs the server: without them it does not start
  std::string program = "/proc/self/exe";
  std::vector<std::string> args = {kAssistHelperWord};
  std::vector<int> cpus;  // AssistOptions::cpus
};

// How long one core takes for low-rank products, by their rank.
class AssistRates {
 public:
  static constexpr std::array<int32_t, 4> kRanks = {8, 16, 64, 256};

  // On the caller's thread, some milliseconds: modules of [hidden, hidden].
  static AssistRates measure(const OpTable& ops, int32_t hidden);
  // Of a row through a pair.
  double row_s(const LoraPair& pair) const;
  // Rows of a second with one module of [hidden, hidden] of this rank.
  double rows_per_s(int32_t hidden, int32_t rank) const;
  // What was seen of it: `told_s` for what was predicted to take `predicted_s`.
  void correct(double predicted_s, double told_s);

 private:
  double multiply_s(int32_t rank) const;
  std::array<double, kRanks.size()> multiply_s_{};  // of one multiplication
  double slowness_ = 1;                             // of helpers against that
};

class LayerAssist {
 public:
  static constexpr int32_t kRowsMost = 128;        // of a helper in a message
  static constexpr double kMessageS = 50e-6;       // passing one on and being answered (assist_bench)
  static constexpr double kWorkPerMessage = 4;     // of a slice, as a part of that
  static constexpr int64_t kLateNs = 200'000'000;  // a helper that takes longer for a message is replaced

  // `ledger` grants what rows and sums take; it, ops, clock and log outlive this.
  static Result<std::unique_ptr<LayerAssist>> create(const AssistSetup& setup, const ModelConfig& config,
                                                     int32_t rank_max, const OpTable& ops, Ledger& ledger,
                                                     const Clock& clock, LogSink& log);

  // The same for a server: null where there are to be none, and, with a warning in the
  // log, where those do not start that nobody has asked for.
  static Result<std::unique_ptr<LayerAssist>> start(const AssistSetup& setup, const ModelConfig& config,
                                                    int32_t rank_max, const OpTable& ops, Ledger& ledger,
                                                    const Clock& clock, LogSink& log);

  // Where helpers can do the adapter's layers: its factors lie in memory that they may
  // map. It is learnt, which takes some system calls a helper.
  AssistOffer offer(const Adapter& adapter);
  bool knows(AdapterVersionId version) const { return known_.count(version) != 0; }
  void forget(AdapterVersionId version);

  // For rows of one segment, of an adapter that helpers know; kOverloaded: they have
  // enough to do.
  Result<AssistTicket> publish(AdapterVersionId version, const LayerInput& input, const LoraSegment& segment);
  // Adds what they have computed to the targets' rows.
  Status collect(AssistTicket& ticket, AdapterVersionId version, const LayerInput& input, const LoraSegment& segment,
                 std::span<const LoraTarget> targets, OpContext& context, int64_t at_most_ns);

  int32_t helpers() const { return pool_->ready_helpers(); }
  int32_t rows() const { return helpers() * kRowsMost; }  // of a step, at most
  std::vector<int> helper_pids() const { return pool_->helper_pids(); }
  AssistStats stats() const { return pool_->stats(); }
  const AssistRates& rates() const { return rates_; }

 private:
  struct Known {
    const Adapter* adapter = nullptr;
    double row_s = 0;  // in one layer
    int32_t rows_each = 0;
  };
  LayerAssist(const ModelConfig& config, const OpTable& ops) : layers_(config.layers), ops_(ops) {}
  void learn_speed();

  const int32_t layers_;
  const OpTable& ops_;
  Grant grant_;
  AssistRates rates_;
  std::unordered_map<AdapterVersionId, Known> known_;
  double predicted_s_ = 0;  // of what helpers were given since rates_ was corrected
  int64_t busy_seen_ns_ = 0;
  std::unique_ptr<AssistPool> pool_;
};

}  // namespace loralei
