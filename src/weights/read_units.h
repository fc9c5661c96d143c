// SPDX-License-Identifier: Apache-2.0
// How the base model is held, and the pieces in which its files are read: what loading
// and packing share.
//
// Thread: held_tensors is pure; run_units runs `work` on several threads and returns when
// all are done.
// Invariant: the pieces are the same whoever reads them, so that the sum of
// their hashes names the model (WeightStore::fingerprint).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "formats/base_model.h"
#include "parallel/shard.h"
#include "tensor/weight_view.h"
#include "weights/residency.h"
#include "weights/shrink_choice.h"
#include "weights/tensor_reader.h"

namespace loralei {

using LoadProgressFn = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

struct WeightOptions {
  std::optional<DType> quantise;  // --quant q8_0|q4_0: matrices are re-encoded on load (norms and biases stay f32)
  // Layout of quantised matrices. An embedding that is not also the head is only looked
  // up and stays plain.
  LayoutId quantised_layout = LayoutId::kTile16;
  StreamShrink shrink = StreamShrink::kAuto;  // packing: 16-bit matrices; opening: auto takes either form
  // Of which rank's part of the matrices is held (check_shards()); packing: the whole.
  Shard shard;
  int threads = 1;
  LoadProgressFn progress;  // called from the loading threads, one at a time
  // Packing:
  std::stop_token stop;                 // ends it early, within a unit of some megabytes
  int64_t pack_step_bytes = 32 * kMiB;  // written between two points from which it can go on
};

struct HeldMatrix {
  const TensorInfo* source = nullptr;
  TensorTarget target;
  PlannedMatrix planned;
  int64_t bytes = 0;
};
struct HeldTensors {
  std::vector<HeldMatrix> matrices;        // in the order of their use in a pass: layers, head, embedding
  std::vector<const TensorInfo*> vectors;  // norms and biases, held as f32, whole
  Shard shard;                             // whose parts the matrices are
};
// Whether a matrix is in a plain format, so that `quantise` would change something;
// held_tensors refuses it otherwise.
bool can_quantise(const BaseModelFile& model);
Result<HeldTensors> held_tensors(const BaseModelFile& model, const TensorReader& reader, const WeightOptions& options);

// Whether the model can be cut for so many ranks: its heads divide, and no border falls
// into a block of a quantised matrix or one of its tiles. A sentence says what is in the
// way and which numbers would do.
Status check_shards(const BaseModelFile& model, const WeightOptions& options, int size);

// One run of rows of one matrix: what a thread takes.
struct ReadUnit {
  size_t matrix = 0;
  int64_t row_begin = 0;
  int64_t row_count = 0;
  bool counts = true;  // its hash is in the sum: of the ranks that read it, one's
};
// The units of a matrix of which something is held, in ascending order. They are cut as
// those of the whole matrix are.
void add_units(const HeldTensors& held, size_t matrix, std::vector<ReadUnit>& units);

// A thread's memory, kept between its units.
struct UnitBuffers {
  std::vector<std::byte> source, packed, shrunk;
};
// A thread's part of `room` bytes: `most`, or less, but at least `least`; where there is
// no room for that, fewer threads share it, one in any case.
struct RoomShare {
  int threads = 1;
  int64_t bytes = 0;  // of each
};
RoomShare share_room(int64_t room, int threads, int64_t least, int64_t most);
// Calls work for all units, with fewer threads where the system gives no more; the first
// error stops the others.
using UnitWork = std::function<Status(const ReadUnit& unit, UnitBuffers& buffers)>;
Status run_units(const std::vector<ReadUnit>& units, int threads, const UnitWork& work);

// Numbers of a tensor.
int64_t numbers_of(const TensorInfo& info);

// A vector as f32; answers the hash of its bytes.
Result<uint64_t> read_vector(const TensorReader& reader, const TensorInfo& info, std::vector<float>& values);

// The sum of all hashes as sixteen letters, and back (0 for anything else).
std::string fingerprint_text(uint64_t sum);
uint64_t fingerprint_value(const std::string& text);

}  // namespace loralei
