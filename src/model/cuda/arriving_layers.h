// SPDX-License-Identifier: Apache-2.0
// ArrivingLayers: the adapters of a step that are on their way to the device. Before the
// first kernel that reads something of them the step's stream is told to wait until that
// is there (StreamGate, which the upload's stream raises): neither the device nor the
// thread that launches waits for the other.
//
//   begin, add...   reach... pace   settle   (wait for the stream)   close
//                   (whatever failed: end)
//
// A step waits for so long in all. Who launches looks now and then (poll): a stream that
// stands at a wait for longer, or for what will not come, is let go on, with numbers that
// are not the adapter's, and the step ends with an error: nothing of it counts.
//
// Launches go ahead of what is there by kAheadLayers at most: a stream takes so many
// launches, and behind that launching waits for the stream, where nobody looks.
// Thread: the model's.
// Ownership: shares arrivals, borrows the gates (CudaAdapters) and the batch from add() to
// close().
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
#include "model/layer_inputs.h"
#include "model/model.h"

namespace loralei {

class ArrivingLayers {
 public:
  static constexpr int32_t kAheadLayers = 8;

  explicit ArrivingLayers(int32_t layers = 0) : layers_(layers) {}

  void begin(const ModelBatch& batch, int64_t wait_at_most_ns);
  void add(int32_t slot, const CudaAdapters::OnItsWay& way);
  bool empty() const { return arriving_.empty(); }

  // What is launched next reads these modules' pairs (as ModelBatch::sources numbers
  // them, of one layer), a layer's norms, what the embedding has, final norm and head.
  Status reach_pairs(CudaStream& stream, std::span<const size_t> modules);
  Status reach_norms(CudaStream& stream, int32_t layer);
  Status reach_embedding(CudaStream& stream);
  Status reach_head(CudaStream& stream);
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
  Status give_up(const Arriving& one);

  int32_t layers_;
  const ModelBatch* batch_ = nullptr;
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
