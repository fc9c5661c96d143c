// SPDX-License-Identifier: Apache-2.0
// CudaAdapters: adapters in GPU memory, low-rank pairs and the full tensors they replace:
// the device's tier of adapters, within one piece of memory (the arena) taken when it is
// made, so that nothing is allocated on the device while steps run.
//
//   absent ─► on the way ─┬► there ─► absent
//                         └► failed ─► absent
//
// On the way: room is taken, and an Uploader copies the adapter. One that is there goes
// when it is given up for another, or forgotten; one that failed goes with its last hold.
//
// Who plans steps holds the adapters of a request before its first step and releases
// them after its last: hold() takes room and begins what is missing, arrived() says when
// steps may use it. Nothing of that waits. Who calls CudaModel::forward() without (tests,
// tools) has ensure() called for it inside the step, which does wait.
//
// With Options::layered a step may use what hold() brings while it is on the way: layers
// come in the order of a pass, each told to threads and streams (on_its_way()), and the
// step sees to it that nothing is read before it is there (arriving_layers.h).
//
// What is uploaded together (an adapter, or those parts of it that ensure() found
// missing) is a slab: one range of the arena and one upload, gathered on the uploader's
// thread. What lies on the device is known by version and module, never by where it lay
// in host memory: an address may be another version's later.
// Thread: the model's (the uploader has its own).
// Ownership: owns device memory; an upload shares ownership of the host's factors
// (AdapterFactors::storage) until it has ended, so an adapter may leave host
// memory at any time.
// Invariants: bytes() <= bytes_max(), those on their way included; a slab that is held,
// on its way or used since begin_step() is never given up; of the others the least
// recently used goes first, or whom choose_leaving() puts first; ranges are given up and
// filled between steps alone, when no kernel reads them. The numbers of a version never
// change, and its id, which is not 0, is never another's.
// Failure: sentences; nothing is half there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/arrivals.h"
#include "base/ids.h"
#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/stream_gate.h"
#include "device/cuda/uploader.h"
#include "device/range_allocator.h"
#include "model/cuda/device_adapter.h"
#include "ops/args.h"
#include "ops/cuda/cuda_ops.h"

namespace loralei {

// An adapter as it lies in host memory.
struct AdapterFactors {
  AdapterVersionId version;
  std::span<const LoraPair> pairs;
  std::shared_ptr<const void> storage;  // owns what the pairs and tensors point to
  const SavedTensors* saved = nullptr;  // null: it replaces none
};

class CudaAdapters {
 public:
  struct Options {
    int device = 0;
    int64_t bytes_max = 0;
    int64_t staging_bytes = int64_t{16} << 20;  // pinned; of uploads in flight
    SavedShape saved;                           // of the model
    bool layered = false;                       // steps may use what is on its way
  };
  using ModulePair = loralei::ModulePair;
  CudaAdapters() = default;  // may only be assigned to
  static Result<CudaAdapters> create(const Options& options);
  static int64_t pinned_bytes(const Options& options);

  // --- between steps

  // Takes room for these adapters, each named once, and begins to upload what is missing:
  // true, and each is held until release(). False: there is no room before others are
  // released or have arrived; nothing is held. Error: they cannot be there together.
  Result<bool> hold(std::span<const AdapterFactors> adapters);
  // Of one that is held: true when steps may use it; an error when its upload failed
  // (those who hold it release it, who holds it later tries again).
  Result<bool> arrived(AdapterVersionId version);
  // Of one that is held, where the adapters are layered: its pieces (device_adapter.h).
  // nullopt: steps have to wait for all of it.
  struct OnItsWay {
    std::shared_ptr<const Arrivals> arrivals;  // of none, where nothing had to come
    StreamGate* gate = nullptr;                // null: all of it is there
    std::span<const int64_t> bytes_through;    // up to and with each piece
    int64_t bytes_before = 0;                  // of others that come first
  };
  std::optional<OnItsWay> on_its_way(AdapterVersionId version) const;
  void release(AdapterVersionId version);
  bool has(AdapterVersionId version) const { return versions_.count(version) != 0; }  // there, or on its way
  // Asked by hold() where room is short, of what it brought that has arrived and nobody
  // holds, the least recently used first: leaves those that may go, the first to go
  // first. Empty: all of them may, in that order.
  void choose_leaving(std::function<void(std::vector<AdapterVersionId>& idle)> choose) { choose_ = std::move(choose); }
  // What hold() brought goes, where it has arrived and nobody holds it.
  void drop_unused(AdapterVersionId version);
  // The version is gone from host memory; nobody holds it.
  void forget(AdapterVersionId version);
  // `call` is called, on another thread, when an upload of a version has ended; empty:
  // nobody from when this returns.
  void on_upload(std::function<void(AdapterVersionId, const Status&)> call);

  // --- for a step

  // No work that reads adapters is on the device; what is found or uploaded from now on
  // stays until the next call.
  void begin_step();
  // Changes whenever a pair or tensor gets a place on the device or loses it.
  uint64_t generation() const { return generation_; }
  // The slabs used since begin_step(), and that they are used again; as long as
  // generation() stays.
  void used(std::vector<int32_t>& slabs) const;
  void use(std::span<const int32_t> slabs);
  // Null: not on the device.
  const cuda::DeviceLora* find(AdapterVersionId version, int32_t module);
  const DeviceSaved* find_saved(AdapterVersionId version);
  // Of one that is held and whose upload has failed; null: it has not.
  const Error* failure_of(AdapterVersionId version) const;
  // Of one that is on its way, held, and told of piece by piece: where that will be.
  bool is_arriving(AdapterVersionId version) const;
  const cuda::DeviceLora* find_arriving(AdapterVersionId version, int32_t module) const;
  const DeviceSaved* find_arriving_saved(AdapterVersionId version) const;
  // Uploads what is not on the device of these pairs (or tensors) and waits until it is.
  // The host's side is no longer read when this returns.
  Status ensure(AdapterVersionId version, std::span<const ModulePair> pairs);
  Status ensure(AdapterVersionId version, const SavedTensors& saved);
  // Forgets what ensure() uploaded of the version. Never between begin_step() and the end
  // of that step's work.
  void drop(AdapterVersionId version);

  bool layered() const { return layered_; }
  int64_t bytes() const { return arena_.taken_bytes(); }
  int64_t bytes_max() const { return arena_.size_bytes(); }
  // Of uploads that have arrived: their number, bytes and time, and how many of them
  // a step waited for.
  int64_t uploads() const { return uploads_; }
  int64_t uploaded_bytes() const { return uploaded_bytes_; }
  int64_t upload_ns() const { return upload_ns_; }
  int64_t waits() const { return waits_; }
  // Of the arena.
  static int64_t adapter_bytes(std::span<const LoraPair> pairs, const SavedTensors* saved = nullptr,
                               const SavedShape& shape = {});
  int64_t adapter_bytes(const AdapterFactors& adapter) const {
    return adapter_bytes(adapter.pairs, adapter.saved, shape_);
  }
  void check() const;

 private:
  enum class State : uint8_t { kAbsent, kOnTheWay, kThere, kFailed };
  struct Slab {
    State state = State::kAbsent;
    int64_t offset = 0, bytes = 0;  // of the arena; 0 bytes take no room
    std::vector<int32_t> modules;
    bool saved = false;  // the full tensors, too
    AdapterVersionId version;
    bool whole = false;  // of hold(), and not forgotten: in versions_
    int32_t holds = 0;
    bool forgotten = false;  // on its way, and nobody wants it any more
    uint64_t used = 0;       // step
    Error error;
    std::shared_ptr<Arrivals> arrivals;  // of one that is layered
    std::vector<int64_t> bytes_through;  // the same
    int32_t gate = -1;                   // while it is on its way; -1: none
  };
  // What a slab is made of.
  struct Parts {
    AdapterVersionId version;
    std::span<const ModulePair> pairs;
    const SavedTensors* saved = nullptr;
    std::shared_ptr<const void> storage;
  };
  // What is on the device of a version, or on its way there, and in which slab: none
  // where that is -1.
  struct Copy {
    struct Pair {
      cuda::DeviceLora lora;
      int32_t slab = -1;
    };
    std::vector<Pair> modules;  // as long as needed
    DeviceSaved saved;
    int32_t saved_slab = -1;
    int32_t parts = 0;  // that are in a slab; gone with the last
  };
  Slab* slab_of(AdapterVersionId version);
  const Slab* slab_of(AdapterVersionId version) const;
  const Copy* arriving_copy(AdapterVersionId version) const;
  void put(Copy& copy, int32_t module, const cuda::DeviceLora& lora, int32_t slab);
  Slab& place(Parts parts, int64_t offset, int64_t bytes, bool layered);
  void lay_out(Parts& parts, int32_t index, Upload& upload, std::vector<int64_t>& piece_ends);
  void tell_of_pieces(Slab& slab, std::vector<int64_t>&& piece_ends, Upload& upload);
  Status bring(Parts parts);
  bool use_if_there(int32_t index);
  bool reserve(std::span<const AdapterFactors> adapters, std::vector<int64_t>& offsets);
  std::optional<int64_t> room(int64_t bytes, uint64_t keep);
  bool held_by_others(std::span<const AdapterFactors> adapters) const;
  static constexpr uint64_t kNoStep = 0;
  void list_leaving(uint64_t keep);
  void settle();
  void settle(const std::vector<UploadEnd>& ended);
  void give_up(Slab& slab);
  int32_t index_of(const Slab& slab) const { return static_cast<int32_t>(&slab - slabs_.data()); }

  DeviceBuffer memory_;
  RangeAllocator arena_;
  SavedShape shape_;
  int64_t uploads_ = 0, uploaded_bytes_ = 0, upload_ns_ = 0, waits_ = 0;
  uint64_t step_ = 1, generation_ = 0;
  bool layered_ = false;
  std::shared_ptr<const Arrivals> nothing_ = std::make_shared<Arrivals>(0);
  StreamGates gates_;  // of slabs that are on their way
  std::vector<int32_t> free_gates_;
  std::deque<int32_t> coming_;                              // slabs that are, in the order in which they come
  std::vector<Slab> slabs_;                                 // absent ones are reused
  std::unordered_map<AdapterVersionId, int32_t> versions_;  // of hold()
  std::unordered_map<AdapterVersionId, Copy> copies_;
  std::vector<UploadEnd> ended_;
  std::function<void(std::vector<AdapterVersionId>&)> choose_;
  bool listed_ = false;           // leaving_, since room was asked for
  std::vector<int32_t> leaving_;  // slabs that may go, in this order
  size_t left_ = 0;               // of these are gone
  size_t idle_slabs_ = 0;         // when they were listed, these among them
  std::vector<AdapterVersionId> idle_;
  std::unique_ptr<Uploader> uploader_;  // goes first: it writes to the arena
};

}  // namespace loralei
