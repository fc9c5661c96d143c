// SPDX-License-Identifier: Apache-2.0
// ArrivingLayers: the adapters of a step that are on their way to the device. Before the
// first kernel that reads something of them the step's stream is told to wait until that
// is there (StreamGate, which the upload's stream raises): neither the device nor the
// thread that launches waits for the other.
//
//   begin, add...   reach... pace   settle   (wait for the stream)   close
//                   publish, add_sums
//                   (whatever failed: end)
//
// What the host computes instead (LayerSums) for adapters that it knows, `apart` here:
// their rows are left out of the step's plan of pairs and have one of their own. At each
// layer input it is decided anew: the layer is there, and the device computes it; else
// its rows go to the host (LayerExchange). What is on the stream is ahead of what the
// host has computed by one layer input.
//
// A step waits for so long in all. Who launches looks now and then (poll): a stream that
// stands at a wait for longer, or for what will not come, is let go on, with numbers that
// are not the adapter's, and the step ends with an error: nothing of it counts.
//
// Launches go ahead of what is there by kAheadLayers at most: a stream takes so many
// launches, and behind that launching waits for the stream, where nobody looks.
// Thread: the model's.
// Ownership: shares arrivals, borrows the gates (CudaAdapters) and the batch from add()
// to close().
// Invariants: no kernel reads a number of a layer before it is there, unless the step has
// ended; what an adapter has nothing of is not waited for. What holds numbers of columns
// (trained tokens of a head) is not launched at all before it is there. Gates are let
// through by this alone, and are as they were after close().
// Failure: kUnavailable for a layer that is late, or the sentence of the upload that
// failed; waits().ended_by says whose. Errors of the stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/stream_gate.h"
#include "model/cuda/cuda_adapters.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/layer_exchange.h"
#include "model/layer_inputs.h"
#include "model/layer_sums.h"
#include "model/model.h"

namespace loralei {

class ArrivingLayers {
 public:
  static constexpr int32_t kAheadLayers = 8;

  static constexpr size_t kAll = SIZE_MAX, kNotApart = SIZE_MAX - 1;

  ArrivingLayers() = default;
  ArrivingLayers(int32_t layers, LayerExchange exchange) : layers_(layers), exchange_(std::move(exchange)) {}

  // `sums` may be null.
  void begin(const ModelBatch& batch, int64_t wait_at_most_ns, LayerSums* sums);
  void add(int32_t slot, const CudaAdapters::OnItsWay& way);
  // This one's upload has failed: the step ends with it.
  void end_with(AdapterVersionId version) { waits_.ended_by = version; }
  bool empty() const { return arriving_.empty(); }
  size_t size() const { return arriving_.size(); }
  int32_t slot(size_t index) const { return arriving_[index].slot; }
  bool is_apart(size_t index) const { return arriving_[index].apart; }
  bool is_apart_slot(int32_t slot) const;

  // What is launched next reads these modules' pairs (as ModelBatch::sources numbers
  // them, of one layer) of the adapter with this index, or of kAll, or kNotApart; a
  // layer's norms; what the embedding has; final norm and head.
  Status reach_pairs(CudaStream& stream, std::span<const size_t> modules, size_t of);
  Status reach_norms(CudaStream& stream, int32_t layer);
  Status reach_embedding(CudaStream& stream);
  Status reach_head(CudaStream& stream);
  // Of those that are apart: decides who computes these modules, whose input is there,
  // and sends the host its rows. Then serves what was sent before that.
  Status publish(CudaStream& stream, std::span<const CudaProduct> products, std::span<const size_t> modules,
                 const CudaInput& input);
  bool on_host(size_t index) const { return arriving_[index].on_host; }
  // Behind the product: what the host has computed.
  Status add_sums(CudaStream& stream, std::span<const CudaProduct> products);
  // Before a layer is launched.
  Status pace(int32_t layer);
  // Until all that the stream was told to wait for is there.
  Status settle();
  // All waits pass from now on.
  void end();
  // The stream is done.
  void close();
  const StepWaits& waits() const { return waits_; }

 private:
  struct Arriving {
    int32_t slot = 0;
    AdapterVersionId version;
    CudaAdapters::OnItsWay way;
    const SavedTensors* saved = nullptr;  // null: none
    int32_t reached = 0;                  // pieces that the stream has been told to wait for
    bool apart = false;
    bool on_host = false;  // what it adds to the layer input of now
  };
  // A place on the stream.
  struct Wait {
    size_t arriving = 0;
    uint32_t pieces = 0;
    size_t event = 0;  // before it
  };
  int32_t layer_of(size_t module) const;
  bool has_pair(const Arriving& one, size_t module) const;
  template <typename Reads>
  Status reach(CudaStream& stream, int32_t layer, Reads&& reads);
  Status mark(CudaStream& stream);
  const Wait* first_missing();
  Status poll();
  bool fits_the_host(int32_t slot);
  void send(const Arriving& one, std::span<const CudaProduct> products, std::span<const size_t> modules);
  Status serve(uint32_t number);
  void count(int32_t layer, bool assisted);
  Status give_up(const Arriving& one);

  int32_t layers_ = 0;
  const ModelBatch* batch_ = nullptr;
  LayerExchange exchange_;
  LayerSums* sums_ = nullptr;
  int32_t host_rows_ = 0;        // of those that are apart
  bool sent_ = false;            // for the layer input of now
  size_t sent_mark_ = 0;         // of events_: behind the rows that were sent last
  int32_t assisted_layer_ = -1;  // the last one
  std::vector<Arriving> arriving_;
  std::vector<Wait> standing_;     // in their order on the stream
  std::vector<CudaEvent> events_;  // kept from step to step
  size_t marks_ = 0;               // of events_, in this step
  size_t next_ = 0;                // of standing_: those before are there
  size_t counted_ = 0;             // of standing_: those before have been waited for, or not
  int64_t left_ns_ = 0;
  int64_t stood_since_ns_ = 0;  // 0: the stream did not stand when it was looked at last
  StepWaits waits_;
};

}  // namespace loralei
