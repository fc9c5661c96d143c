// SPDX-License-Identifier: Apache-2.0
// EmulatedTier: adapters in host memory that is treated as a device's: one piece (the
// arena), to which they come over a link, layer after layer, while steps are computed.
// Steps read the copies, never the adapters that were copied.
//
// Thread: the engine's; the call given to on_upload() is called on the link's.
// Ownership: owns arena, copies and link; an upload shares the adapter's storage until it
// has ended, so that the adapter may leave host memory at any time.
// Invariants: those of AdapterPlaces; a copy is given to `comes` when it has a range, and
// to `leaves` before that is another's; with `poison` a range holds NaN, but for the
// layers that have arrived.
// Failure: as DeviceTier; nothing is half there.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/emulated/link_uploader.h"
#include "device/host/arena.h"
#include "engine/device_tier.h"
#include "engine/emulated/adapter_copy.h"
#include "engine/emulated/adapter_places.h"

namespace loralei {

struct EmulatedTierOptions {
  int64_t bytes_max = 0;
  CopyShape shape;
#ifdef NDEBUG
  bool poison = false;
#else
  bool poison = true;
#endif
};

class EmulatedTier final : public DeviceTier {
 public:
  // The clock outlives it.
  static Result<std::unique_ptr<EmulatedTier>> create(const EmulatedTierOptions& options, std::unique_ptr<Link> link,
                                                      const Clock& clock);
  ~EmulatedTier() override;

  Result<bool> hold(std::span<const Adapter* const> adapters) override;
  Result<bool> arrived(AdapterVersionId version) override;
  std::optional<AdapterOnItsWay> on_its_way(AdapterVersionId version) const override;
  void release(AdapterVersionId version) override { places_.release(version); }
  bool has(AdapterVersionId version) const override { return places_.has(version); }
  void drop_unused(AdapterVersionId version) override;
  void forget(AdapterVersionId version) override;
  void on_upload(std::function<void(UploadDone&&)> call) override;
  int64_t bytes_max() const override { return places_.bytes_max(); }
  void choose_leaving(ChooseLeaving choose) override { places_.choose_leaving(std::move(choose)); }
  DeviceTierStats stats() const override { return stats_; }

  // Told between steps, by the calls above.
  struct CopyNews {
    std::function<void(const Adapter& copy, std::shared_ptr<const Arrivals> arrivals)> comes;
    std::function<void(AdapterVersionId version)> leaves;
  };
  void on_copies(CopyNews news) { news_ = std::move(news); }
  int64_t bytes() const { return places_.bytes(); }
  // That a copy has of the arena.
  int64_t bytes_of(const Adapter& adapter) const;
  void check() const;

 private:
  struct Brought {
    std::unique_ptr<AdapterCopy> copy;
    int64_t offset = 0, bytes = 0;
    std::vector<int64_t> bytes_through;  // AdapterOnItsWay
    std::shared_ptr<Arrivals> arrivals;
  };
  explicit EmulatedTier(const EmulatedTierOptions& options);
  void bring(const Adapter& adapter, int64_t offset);
  int64_t bytes_before(AdapterVersionId version) const;
  void leave(AdapterVersionId version);
  void settle();
  void poison(const Brought& brought);

  const EmulatedTierOptions options_;
  HostBuffer memory_;
  AdapterPlaces places_;
  std::unordered_map<AdapterVersionId, Brought> brought_;  // all that have a place
  std::deque<AdapterVersionId> coming_;                    // of these, in the order in which they come
  CopyNews news_;
  DeviceTierStats stats_;
  std::vector<AdapterPlaces::Placed> placed_;
  std::vector<LinkUploadEnd> ended_;
  std::unique_ptr<LinkUploader> uploader_;  // goes first: it writes to the arena
};

}  // namespace loralei
