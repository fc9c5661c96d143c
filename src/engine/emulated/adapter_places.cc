// SPDX-License-Identifier: Apache-2.0
#include "engine/emulated/adapter_places.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace loralei {

AdapterPlaces::Place* AdapterPlaces::find(AdapterVersionId version) {
  const auto found = places_.find(version);
  return found == places_.end() ? nullptr : &found->second;
}

bool AdapterPlaces::has(AdapterVersionId version) const {
  const auto found = places_.find(version);
  return found != places_.end() && !found->second.forgotten;
}

void AdapterPlaces::give_up(AdapterVersionId version) {
  const auto found = places_.find(version);
  CHECK(found != places_.end() && found->second.state != State::kOnTheWay && found->second.holds == 0);
  arena_.release(found->second.offset);
  places_.erase(found);
  if (leave_) leave_(version);
}

AdapterPlaces::Leaving AdapterPlaces::list_leaving() const {
  Leaving leaving;
  for (const auto& [version, place] : places_) {
    if (place.state == State::kThere && place.holds == 0) leaving.order.push_back(version);
  }
  const size_t idle = leaving.order.size();
  std::sort(leaving.order.begin(), leaving.order.end(),
            [&](AdapterVersionId a, AdapterVersionId b) { return places_.at(a).used < places_.at(b).used; });
  if (choose_) choose_(leaving.order);
  leaving.all = leaving.order.size() == idle;
  for (const AdapterVersionId version : leaving.order) leaving.bytes += places_.at(version).bytes;
  return leaving;
}

// Ranges for all that are missing, or for none. Others give way as far as needed: none
// where that would not do, but for ranges that lie in pieces.
bool AdapterPlaces::take_room(std::span<const Wanted> missing, std::vector<Placed>& placed, bool& all_may_leave) {
  int64_t missing_bytes = 0;
  for (const Wanted& wanted : missing) missing_bytes += range_bytes(wanted.bytes);
  std::optional<Leaving> leaving;
  if (missing_bytes > arena_.free_bytes()) {
    leaving = list_leaving();
    if (missing_bytes > arena_.free_bytes() + leaving->bytes) return false;
  }
  size_t left = 0;
  for (const Wanted& wanted : missing) {
    auto offset = arena_.allocate(range_bytes(wanted.bytes));
    while (!offset) {
      if (!leaving) leaving = list_leaving();
      if (left == leaving->order.size()) break;
      give_up(leaving->order[left++]);
      offset = arena_.allocate(range_bytes(wanted.bytes));
    }
    if (!offset) break;
    placed.push_back({wanted.version, *offset});
  }
  if (placed.size() == missing.size()) return true;
  for (const Placed& range : placed) arena_.release(range.offset);
  placed.clear();
  all_may_leave = leaving->all;
  return false;
}

bool AdapterPlaces::others_stay(std::span<const Wanted> wanted) const {
  return std::any_of(places_.begin(), places_.end(), [&](const auto& entry) {
    const bool own = std::any_of(wanted.begin(), wanted.end(),
                                 [&](const Wanted& adapter) { return adapter.version == entry.first; });
    return entry.second.state == State::kOnTheWay || entry.second.holds > (own ? 1 : 0);
  });
}

Result<bool> AdapterPlaces::hold(std::span<const Wanted> wanted, std::vector<Placed>& placed) {
  placed.clear();
  int64_t all_bytes = 0;
  std::vector<Wanted> missing;
  for (const Wanted& adapter : wanted) {
    CHECK(adapter.version != AdapterVersionId());
    all_bytes += range_bytes(adapter.bytes);
    if (find(adapter.version) == nullptr) missing.push_back(adapter);
  }
  if (all_bytes > bytes_max()) {
    return too_large("Its adapters need " + format_bytes(all_bytes) + " of the device's memory together and adapters " +
                     "have " + format_bytes(bytes_max()) + "; give them more with --adapter-memory, or use fewer of " +
                     "them in one request.");
  }
  const auto add_holds = [&](int32_t count) {
    for (const Wanted& adapter : wanted) {
      Place* const place = find(adapter.version);
      if (place == nullptr) continue;
      CHECK(!place->forgotten);
      place->holds += count;
    }
  };
  add_holds(1);
  bool all_may_leave = false;
  bool fits = take_room(missing, placed, all_may_leave);
  if (!fits && all_may_leave &&
      !others_stay(wanted)) {  // free ranges are in pieces: from the start, one behind another
    add_holds(-1);
    while (!places_.empty()) give_up(places_.begin()->first);
    missing.assign(wanted.begin(), wanted.end());
    fits = take_room(missing, placed, all_may_leave);
    CHECK(fits);
  } else if (!fits) {
    add_holds(-1);
  }
  if (!fits) return false;
  for (size_t i = 0; i < missing.size(); ++i) {
    places_[missing[i].version] = {
        .offset = placed[i].offset, .bytes = range_bytes(missing[i].bytes), .holds = 1, .used = ++uses_};
  }
  return true;
}

Result<bool> AdapterPlaces::arrived(AdapterVersionId version) const {
  const Place& place = places_.at(version);
  CHECK(place.holds > 0);
  if (place.state == State::kFailed) return place.error;
  return place.state == State::kThere;
}

void AdapterPlaces::release(AdapterVersionId version) {
  Place* const place = find(version);
  CHECK(place != nullptr && place->holds > 0);
  place->used = ++uses_;
  if (--place->holds == 0 && place->state == State::kFailed) give_up(version);
}

void AdapterPlaces::drop_unused(AdapterVersionId version) {
  const Place* const place = find(version);
  if (place != nullptr && place->holds == 0 && place->state == State::kThere) give_up(version);
}

void AdapterPlaces::forget(AdapterVersionId version) {
  Place* const place = find(version);
  if (place == nullptr) return;
  CHECK(place->holds == 0);
  if (place->state == State::kOnTheWay) {
    place->forgotten = true;
  } else {
    give_up(version);
  }
}

void AdapterPlaces::ended(AdapterVersionId version, const Status& status) {
  Place& place = places_.at(version);
  CHECK(place.state == State::kOnTheWay);
  place.state = status.ok() ? State::kThere : State::kFailed;
  if (!status.ok()) place.error = status.error();
  if (place.forgotten || (!status.ok() && place.holds == 0)) give_up(version);
}

void AdapterPlaces::check() const {
  arena_.check();
  int64_t taken = 0;
  for (const auto& [version, place] : places_) {
    CHECK(version != AdapterVersionId() && place.holds >= 0 && place.bytes > 0);
    CHECK(!place.forgotten || (place.state == State::kOnTheWay && place.holds == 0));
    CHECK(place.state != State::kFailed || place.holds > 0);
    taken += place.bytes;
  }
  CHECK(taken == bytes() && taken <= bytes_max());
}

}  // namespace loralei
