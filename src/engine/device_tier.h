// SPDX-License-Identifier: Apache-2.0
// DeviceTier: where adapters lie for an executor that does not compute in host
// memory: the third tier beside their files and the registry's copies. A seam with
// a simulated twin.
//
// Thread: the engine's; the call given to on_upload() is called on any other.
// Ownership: a version on the device outlives its copy in host memory by no more than its
// upload; AdapterHold is the move-only share of a request.
// Invariants: what is held and has arrived is there until it is released;
// nothing here waits.
// Failure: sentences; kUnavailable as of an Executor: nothing can be brought any more.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "base/arrivals.h"

namespace loralei {

struct DeviceTierStats {
  int64_t uploads = 0, upload_bytes = 0, upload_ns = 0;
};

// What arrived() and hold() will find.
struct UploadDone {
  AdapterVersionId version;
  Status status;
};

// One that comes layer by layer, in the order in which a pass reads them.
struct AdapterOnItsWay {
  std::shared_ptr<const Arrivals> arrivals;  // of its layers, and of what comes behind them
  std::span<const int64_t> bytes_through;    // up to and with each of these
  int64_t bytes_before = 0;                  // of others that come first

  int64_t bytes_left(int32_t piece) const {  // until that piece is there
    const int32_t there = arrivals->there();
    if (piece < there) return 0;
    const auto through = [&](int32_t index) { return index < 0 ? 0 : bytes_through[static_cast<size_t>(index)]; };
    return bytes_before + through(piece) - through(there - 1);
  }
};

class DeviceTier {
 public:
  virtual ~DeviceTier() = default;
  // True: there is room for all of these (each named once), what is missing is on its
  // way, and each is held until release(). False: no room before others are released or
  // have arrived, or may leave; nothing is held, ask again then. Error: they cannot be
  // there together.
  virtual Result<bool> hold(std::span<const Adapter* const> adapters) = 0;
  // Of a version that is held: true when steps may use it; an error when it could
  // not be brought.
  virtual Result<bool> arrived(AdapterVersionId version) = 0;
  // Of a version that is held and has not arrived: steps may begin with it. nullopt:
  // they may not.
  virtual std::optional<AdapterOnItsWay> on_its_way(AdapterVersionId) const { return std::nullopt; }
  virtual void release(AdapterVersionId version) = 0;
  virtual bool has(AdapterVersionId version) const = 0;  // there, or on its way
  // Its copy goes, where it has arrived and nobody holds it.
  virtual void drop_unused(AdapterVersionId version) = 0;
  // The version left host memory; nobody holds it.
  virtual void forget(AdapterVersionId version) = 0;
  // `call` is called when a version has arrived or failed; empty: not any more from when
  // this returns.
  virtual void on_upload(std::function<void(UploadDone&&)> call) = 0;
  virtual int64_t bytes_max() const = 0;  // that copies may have
  // Asked by hold() where room is short: `idle` are those that have arrived and nobody
  // holds, and the call leaves those that may go for others, the first to go first.
  // Empty: all of them may, the one released longest ago first.
  using ChooseLeaving = std::function<void(std::vector<AdapterVersionId>& idle)>;
  virtual void choose_leaving(ChooseLeaving choose) = 0;
  virtual DeviceTierStats stats() const = 0;
};

// The adapters of one request, held together. Dropped before their pins.
class [[nodiscard]] AdapterHold {
 public:
  AdapterHold() = default;
  AdapterHold(AdapterHold&& other) noexcept
      : tier_(std::exchange(other.tier_, nullptr)), versions_(std::move(other.versions_)) {}
  AdapterHold& operator=(AdapterHold&&) = delete;
  ~AdapterHold() { release(); }

  // As DeviceTier::hold.
  Result<bool> take(DeviceTier& tier, std::span<const Adapter* const> adapters) {
    TRY_ASSIGN(const bool held, tier.hold(adapters));
    if (!held) return false;
    tier_ = &tier;
    for (const Adapter* adapter : adapters) versions_.push_back(adapter->version);
    return true;
  }
  explicit operator bool() const { return tier_ != nullptr; }
  std::span<const AdapterVersionId> versions() const { return versions_; }
  void release() {
    if (tier_ == nullptr) return;
    for (const AdapterVersionId version : versions_) tier_->release(version);
    tier_ = nullptr;
    versions_.clear();
  }

 private:
  DeviceTier* tier_ = nullptr;
  std::vector<AdapterVersionId> versions_;
};

}  // namespace loralei
