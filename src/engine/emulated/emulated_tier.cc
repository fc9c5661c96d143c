// SPDX-License-Identifier: Apache-2.0
#include "engine/emulated/emulated_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace loralei {
namespace {

constexpr int kPoison = 0xFF;  // NaN in all formats of numbers and scales

}  // namespace

EmulatedTier::EmulatedTier(const EmulatedTierOptions& options) : options_(options), places_(options.bytes_max) {
  places_.on_leave([this](AdapterVersionId version) { leave(version); });
}

EmulatedTier::~EmulatedTier() = default;

Result<std::unique_ptr<EmulatedTier>> EmulatedTier::create(const EmulatedTierOptions& options,
                                                           std::unique_ptr<Link> link, const Clock& clock) {
  std::unique_ptr<EmulatedTier> made(new EmulatedTier(options));
  TRY_ASSIGN(made->memory_, HostBuffer::allocate(made->places_.bytes_max()));
  TRY_ASSIGN(made->uploader_, LinkUploader::create(std::move(link), clock));
  return made;
}

int64_t EmulatedTier::bytes_of(const Adapter& adapter) const {
  return AdapterPlaces::range_bytes(copy_bytes(adapter, options_.shape));
}

Result<bool> EmulatedTier::hold(std::span<const Adapter* const> adapters) {
  settle();
  std::vector<AdapterPlaces::Wanted> wanted;
  for (const Adapter* adapter : adapters) wanted.push_back({adapter->version, bytes_of(*adapter)});
  TRY_ASSIGN(const bool held, places_.hold(wanted, placed_));
  if (!held) return false;
  for (const auto& [version, offset] : placed_) {
    const auto adapter = std::find_if(adapters.begin(), adapters.end(),
                                      [&, id = version](const Adapter* a) { return a->version == id; });
    bring(**adapter, offset);
  }
  return true;
}

void EmulatedTier::bring(const Adapter& adapter, int64_t offset) {
  CopyPlan plan = plan_copy(adapter, options_.shape, memory_.data() + offset);
  Brought& brought = brought_[adapter.version];
  CHECK(brought.copy == nullptr);
  brought = {.copy = std::move(plan.copy),
             .offset = offset,
             .bytes = bytes_of(adapter),
             .bytes_through = {},
             .arrivals = std::make_shared<Arrivals>(static_cast<int32_t>(plan.layer_parts.size()))};
  auto part = plan.parts.begin();
  int64_t through = 0;
  for (const int32_t count : plan.layer_parts) {
    for (int32_t i = 0; i < count; ++i, ++part) through += part->bytes;
    brought.bytes_through.push_back(through);
  }
  poison(brought);
  coming_.push_back(adapter.version);
  if (news_.comes) news_.comes(brought.copy->adapter, brought.arrivals);
  uploader_->start({.id = adapter.version.value,
                    .parts = std::move(plan.parts),
                    .layer_parts = std::move(plan.layer_parts),
                    .keeps = adapter.storage,
                    .layers_there = brought.arrivals});
}

void EmulatedTier::poison(const Brought& brought) {
  if (options_.poison) std::memset(memory_.data() + brought.offset, kPoison, static_cast<size_t>(brought.bytes));
}

void EmulatedTier::leave(AdapterVersionId version) {
  const auto found = brought_.find(version);
  CHECK(found != brought_.end());
  if (news_.leaves) news_.leaves(version);
  poison(found->second);
  brought_.erase(found);
}

// Uploads that have ended.
void EmulatedTier::settle() {
  ended_.clear();
  uploader_->poll(ended_);
  for (const LinkUploadEnd& end : ended_) {
    const AdapterVersionId version{end.id};
    Brought& brought = brought_.at(version);
    if (end.status.ok()) {
      ++stats_.uploads;
      stats_.upload_bytes += brought.bytes;
      stats_.upload_ns += end.ns;
    }
    std::erase(coming_, version);
    places_.ended(version, end.status);
  }
}

Result<bool> EmulatedTier::arrived(AdapterVersionId version) {
  settle();
  return places_.arrived(version);
}

void EmulatedTier::drop_unused(AdapterVersionId version) {
  settle();
  places_.drop_unused(version);
}

void EmulatedTier::forget(AdapterVersionId version) {
  settle();
  places_.forget(version);
}

void EmulatedTier::on_upload(std::function<void(UploadDone&&)> call) {
  if (call == nullptr) return uploader_->on_end({});
  uploader_->on_end([call = std::move(call)](const LinkUploadEnd& end) {
    call({AdapterVersionId{end.id}, end.status});
  });
}

std::optional<AdapterOnItsWay> EmulatedTier::on_its_way(AdapterVersionId version) const {
  const Brought& brought = brought_.at(version);
  return AdapterOnItsWay{brought.arrivals, brought.bytes_through, bytes_before(version)};
}

// Of those that are on their way and come first.
int64_t EmulatedTier::bytes_before(AdapterVersionId version) const {
  int64_t bytes = 0;
  for (const AdapterVersionId other : coming_) {
    if (other == version) break;
    const Brought& brought = brought_.at(other);
    bytes += AdapterOnItsWay{brought.arrivals, brought.bytes_through, 0}.bytes_left(brought.arrivals->total() - 1);
  }
  return bytes;
}

void EmulatedTier::check() const {
  places_.check();
  int64_t bytes = 0;
  for (const auto& [version, brought] : brought_) {
    bytes += brought.bytes;
    CHECK(brought.arrivals->total() == options_.shape.layers + 1 &&
          std::ssize(brought.bytes_through) == brought.arrivals->total());
  }
  CHECK(bytes == places_.bytes());
}

}  // namespace loralei
