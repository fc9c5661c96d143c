// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_adapters.h"

#include <algorithm>
#include <string>

#include "base/units.h"
#include "model/cuda/cuda_kv.h"

namespace loralei {
namespace {

constexpr int32_t kGates = 64;  // uploads whose layers steps may wait for, at a time

int64_t slab_bytes(std::span<const CudaAdapters::ModulePair> pairs, const SavedTensors* saved,
                   const SavedShape& shape) {
  AdapterLayout layout(shape);
  layout.put(pairs, saved, saved == nullptr ? nullptr : saved->head_tokens.data());
  return RangeAllocator::rounded(layout.bytes());
}

// What an upload reads.
struct Kept {
  std::shared_ptr<const void> storage;
  std::vector<TokenId> head_tokens;
};

std::vector<CudaAdapters::ModulePair> present_pairs(std::span<const LoraPair> pairs) {
  std::vector<CudaAdapters::ModulePair> found;
  for (size_t module = 0; module < pairs.size(); ++module) {
    if (present(pairs[module])) found.push_back({static_cast<int32_t>(module), &pairs[module]});
  }
  return found;
}

}  // namespace

Result<CudaAdapters> CudaAdapters::create(const Options& options) {
  CudaAdapters made;
  made.arena_ = RangeAllocator(options.bytes_max);
  made.shape_ = options.saved;
  made.layered_ = options.layered;
  TRY_ASSIGN(made.gates_, StreamGates::create(options.layered ? kGates : 0));
  for (int32_t gate = made.gates_.count(); gate-- > 0;) made.free_gates_.push_back(gate);
  TRY_ASSIGN(made.memory_, allocate_on_device(made.arena_.size_bytes(), "The adapters' share",
                                              "give adapters less memory, or the model fewer rows or less context."));
  TRY_ASSIGN(made.uploader_, Uploader::create({options.device, options.staging_bytes}));
  return made;
}

int64_t CudaAdapters::pinned_bytes(const Options& options) {
  return options.staging_bytes + StreamGates::bytes(options.layered ? kGates : 0);
}

int64_t CudaAdapters::adapter_bytes(std::span<const LoraPair> pairs, const SavedTensors* saved,
                                    const SavedShape& shape) {
  return slab_bytes(present_pairs(pairs), saved, shape);
}

// --- slabs

CudaAdapters::Slab* CudaAdapters::slab_of(AdapterVersionId version) {
  const auto found = versions_.find(version);
  return found == versions_.end() ? nullptr : &slabs_[static_cast<size_t>(found->second)];
}

const CudaAdapters::Slab* CudaAdapters::slab_of(AdapterVersionId version) const {
  const auto found = versions_.find(version);
  return found == versions_.end() ? nullptr : &slabs_[static_cast<size_t>(found->second)];
}

void CudaAdapters::put(Copy& copy, int32_t module, const cuda::DeviceLora& lora, int32_t slab) {
  if (copy.modules.size() <= static_cast<size_t>(module)) copy.modules.resize(static_cast<size_t>(module) + 1);
  Copy::Pair& pair = copy.modules[static_cast<size_t>(module)];
  copy.parts += pair.slab < 0 ? 1 : 0;
  pair = {lora, slab};
}

// A slab of these parts on its way to [offset, offset + bytes).
CudaAdapters::Slab& CudaAdapters::place(Parts parts, int64_t offset, int64_t bytes, bool layered) {
  CHECK(parts.version != AdapterVersionId());
  const auto absent = [](const Slab& slab) { return slab.state == State::kAbsent; };
  auto free = std::find_if(slabs_.begin(), slabs_.end(), absent);
  if (free == slabs_.end()) free = slabs_.emplace(slabs_.end());
  Slab& slab = *free;
  ++generation_;
  slab = {.state = bytes > 0 ? State::kOnTheWay : State::kThere,
          .offset = offset,
          .bytes = bytes,
          .saved = parts.saved != nullptr,
          .version = parts.version,
          .used = step_};
  const int32_t index = index_of(slab);
  Upload upload{.id = static_cast<uint64_t>(index),
                .subject = parts.version.value,
                .to = memory_.data() + offset,
                .bytes = bytes};
  std::vector<int64_t> piece_ends;
  lay_out(parts, index, upload, piece_ends);
  if (bytes == 0) return slab;
  if (layered && !free_gates_.empty()) tell_of_pieces(slab, std::move(piece_ends), upload);
  coming_.push_back(index);
  uploader_->start(std::move(upload));
  return slab;
}

// Where all of it will be, and what the upload reads.
void CudaAdapters::lay_out(Parts& parts, int32_t index, Upload& upload, std::vector<int64_t>& piece_ends) {
  if (parts.saved != nullptr) {
    // The list of tokens is not in the adapter's storage; the upload has its own.
    parts.storage = std::make_shared<Kept>(Kept{std::move(parts.storage), parts.saved->head_tokens});
  }
  upload.keeps = std::move(parts.storage);
  const auto* const kept = parts.saved == nullptr ? nullptr : static_cast<const Kept*>(upload.keeps.get());
  AdapterLayout layout(shape_, &upload);
  DevicePlaces places = layout.put(parts.pairs, parts.saved, kept == nullptr ? nullptr : kept->head_tokens.data());
  piece_ends = std::move(places.piece_ends);
  Slab& slab = slabs_[static_cast<size_t>(index)];
  Copy& copy = copies_[parts.version];
  for (size_t i = 0; i < parts.pairs.size(); ++i) {
    put(copy, parts.pairs[i].module, places.pairs[i], index);
    slab.modules.push_back(parts.pairs[i].module);
  }
  if (parts.saved != nullptr) {
    copy.parts += copy.saved_slab < 0 ? 1 : 0;
    copy.saved = std::move(places.saved);
    copy.saved_slab = index;
  }
  if (copy.parts == 0) copies_.erase(parts.version);
}

void CudaAdapters::tell_of_pieces(Slab& slab, std::vector<int64_t>&& piece_ends, Upload& upload) {
  piece_ends.back() = slab.bytes;
  slab.bytes_through = piece_ends;
  slab.arrivals = std::make_shared<Arrivals>(static_cast<int32_t>(piece_ends.size()));
  slab.gate = free_gates_.back();
  free_gates_.pop_back();
  StreamGate& gate = gates_[slab.gate];
  gate.there.store(0, std::memory_order_relaxed);
  gate.ended.store(0, std::memory_order_release);
  upload.piece_ends = std::move(piece_ends);
  upload.arrivals = slab.arrivals;
  upload.gate = &gate;
}

void CudaAdapters::give_up(Slab& slab) {
  CHECK(slab.state != State::kAbsent && slab.state != State::kOnTheWay && slab.holds == 0);
  if (const auto found = copies_.find(slab.version); found != copies_.end()) {
    Copy& copy = found->second;
    const auto leave = [&](int32_t& of) {
      if (of != index_of(slab)) return;  // it has come once more since
      of = -1;
      --copy.parts;
    };
    for (const int32_t module : slab.modules) leave(copy.modules[static_cast<size_t>(module)].slab);
    if (slab.saved) leave(copy.saved_slab);
    if (copy.parts == 0) copies_.erase(found);
  }
  if (slab.whole) versions_.erase(slab.version);
  if (slab.bytes > 0) arena_.release(slab.offset);
  slab = Slab();
  ++generation_;
}

// The slabs that may be given up for others, but for those used in step `keep`: first
// what ensure() brought, then in the order of choose_leaving().
void CudaAdapters::list_leaving(uint64_t keep) {
  leaving_.clear();
  listed_ = true;
  left_ = 0;
  for (const Slab& slab : slabs_) {
    if (slab.state == State::kThere && slab.bytes > 0 && slab.holds == 0 && slab.used != keep)
      leaving_.push_back(index_of(slab));
  }
  idle_slabs_ = leaving_.size();
  const auto slab_at = [this](int32_t index) -> const Slab& { return slabs_[static_cast<size_t>(index)]; };
  const bool chosen = choose_ != nullptr && keep == kNoStep;
  std::sort(leaving_.begin(), leaving_.end(), [&](int32_t a, int32_t b) {
    const bool a_last = chosen && slab_at(a).whole, b_last = chosen && slab_at(b).whole;
    if (a_last != b_last) return b_last;
    return slab_at(a).used != slab_at(b).used ? slab_at(a).used < slab_at(b).used : a < b;
  });
  if (!chosen) return;
  const auto whole =
      std::find_if(leaving_.begin(), leaving_.end(), [&](int32_t index) { return slab_at(index).whole; });
  idle_.clear();
  for (auto slab = whole; slab != leaving_.end(); ++slab) idle_.push_back(slab_at(*slab).version);
  leaving_.erase(whole, leaving_.end());
  choose_(idle_);
  for (const AdapterVersionId version : idle_) leaving_.push_back(versions_.at(version));
}

// The start of a free range, for which slabs of list_leaving() are given up.
std::optional<int64_t> CudaAdapters::room(int64_t bytes, uint64_t keep) {
  if (bytes == 0) return 0;
  for (;;) {
    if (const auto offset = arena_.allocate(bytes)) return offset;
    if (!listed_) list_leaving(keep);
    if (left_ == leaving_.size()) return std::nullopt;
    give_up(slabs_[static_cast<size_t>(leaving_[left_++])]);
  }
}

// --- uploads that have ended

void CudaAdapters::on_upload(std::function<void(AdapterVersionId, const Status&)> call) {
  if (call == nullptr) return uploader_->on_end({});
  uploader_->on_end(
      [call = std::move(call)](const UploadEnd& end) { call(AdapterVersionId{end.subject}, end.status); });
}

void CudaAdapters::settle() {
  ended_.clear();
  uploader_->poll(ended_);
  settle(ended_);
}

void CudaAdapters::settle(const std::vector<UploadEnd>& ended) {
  for (const UploadEnd& end : ended) {
    Slab& slab = slabs_[static_cast<size_t>(end.id)];
    slab.state = end.status.ok() ? State::kThere : State::kFailed;
    std::erase(coming_, static_cast<int32_t>(end.id));
    if (slab.gate >= 0) free_gates_.push_back(std::exchange(slab.gate, -1));
    if (end.status.ok()) {
      ++uploads_;
      uploaded_bytes_ += slab.bytes;
      upload_ns_ += end.ns;
    } else {
      slab.error = end.status.error();
    }
    if (slab.forgotten || (slab.state == State::kFailed && slab.holds == 0)) give_up(slab);
  }
}

// --- between steps

// Ranges for the adapters that are missing, in their order; without room for all
// of them, for none.
bool CudaAdapters::reserve(std::span<const AdapterFactors> adapters, std::vector<int64_t>& offsets) {
  offsets.clear();
  listed_ = false;
  int64_t missing = 0, room_bytes = arena_.free_bytes();
  for (const AdapterFactors& adapter : adapters) {
    if (slab_of(adapter.version) == nullptr) missing += adapter_bytes(adapter);
  }
  if (missing > room_bytes) {
    list_leaving(kNoStep);
    for (const int32_t index : leaving_) room_bytes += slabs_[static_cast<size_t>(index)].bytes;
  }
  bool fits = missing <= room_bytes;
  std::vector<int64_t> taken;
  for (const AdapterFactors& adapter : adapters) {
    if (!fits) break;
    if (slab_of(adapter.version) != nullptr) continue;
    const int64_t bytes = adapter_bytes(adapter);
    const auto offset = room(bytes, kNoStep);
    fits = offset.has_value();
    if (fits) offsets.push_back(*offset);
    if (fits && bytes > 0) taken.push_back(*offset);
  }
  if (fits) return true;
  for (const int64_t offset : taken) arena_.release(offset);
  return false;
}

bool CudaAdapters::held_by_others(std::span<const AdapterFactors> adapters) const {
  return std::any_of(slabs_.begin(), slabs_.end(), [&](const Slab& slab) {
    const bool own = std::any_of(adapters.begin(), adapters.end(), [&](const AdapterFactors& adapter) {
      return slab.whole && adapter.version == slab.version;
    });
    return slab.state == State::kOnTheWay || slab.holds > (own ? 1 : 0);
  });
}

Result<bool> CudaAdapters::hold(std::span<const AdapterFactors> adapters) {
  settle();
  int64_t all_bytes = 0;
  for (const AdapterFactors& adapter : adapters) all_bytes += adapter_bytes(adapter);
  if (all_bytes > bytes_max()) {
    return too_large("Its adapters need " + format_bytes(all_bytes) + " of GPU memory together and adapters have " +
                     format_bytes(bytes_max()) + "; give them more, or use fewer of them in one request.");
  }
  const auto add_holds = [&](int32_t count) {
    for (const AdapterFactors& adapter : adapters) {
      if (Slab* const slab = slab_of(adapter.version)) slab->holds += count;
    }
  };
  std::vector<int64_t> offsets;
  add_holds(1);
  bool fits = reserve(adapters, offsets);
  const bool all_may_leave = !fits && leaving_.size() == idle_slabs_;
  if (all_may_leave && !held_by_others(adapters)) {  // free ranges are in pieces: from the start, one behind the other
    add_holds(-1);
    for (Slab& slab : slabs_) {
      if (slab.state != State::kAbsent) give_up(slab);
    }
    fits = reserve(adapters, offsets);
    CHECK(fits);
  } else if (!fits) {
    add_holds(-1);
  }
  if (!fits) return false;
  auto offset = offsets.begin();
  for (const AdapterFactors& adapter : adapters) {
    if (slab_of(adapter.version) != nullptr) continue;
    const auto pairs = present_pairs(adapter.pairs);
    Slab& slab =
        place({adapter.version, pairs, adapter.saved, adapter.storage}, *offset++, adapter_bytes(adapter), layered_);
    slab.whole = true;
    slab.holds = 1;
    versions_[adapter.version] = index_of(slab);
  }
  return true;
}

Result<bool> CudaAdapters::arrived(AdapterVersionId version) {
  settle();
  const Slab* const slab = slab_of(version);
  CHECK(slab != nullptr && slab->holds > 0);
  if (slab->state == State::kFailed) return slab->error;
  return slab->state == State::kThere;
}

std::optional<CudaAdapters::OnItsWay> CudaAdapters::on_its_way(AdapterVersionId version) const {
  const Slab* const slab = slab_of(version);
  CHECK(slab != nullptr && slab->holds > 0);
  if (!layered_ || slab->state == State::kFailed) return std::nullopt;
  if (slab->state == State::kThere) return OnItsWay{.arrivals = nothing_};
  if (slab->gate < 0) return std::nullopt;
  OnItsWay way{slab->arrivals, &gates_[slab->gate], slab->bytes_through, 0};
  for (const int32_t index : coming_) {
    if (index == index_of(*slab)) break;
    const Slab& other = slabs_[static_cast<size_t>(index)];
    const int32_t there = other.arrivals == nullptr ? 0 : other.arrivals->there();
    way.bytes_before += other.bytes - (there == 0 ? 0 : other.bytes_through[static_cast<size_t>(there) - 1]);
  }
  return way;
}

void CudaAdapters::release(AdapterVersionId version) {
  Slab* const slab = slab_of(version);
  CHECK(slab != nullptr && slab->holds > 0);
  slab->used = step_;
  if (--slab->holds == 0 && slab->state == State::kFailed) give_up(*slab);
}

void CudaAdapters::drop_unused(AdapterVersionId version) {
  settle();
  Slab* const slab = slab_of(version);
  if (slab != nullptr && slab->holds == 0 && slab->state == State::kThere) give_up(*slab);
}

void CudaAdapters::forget(AdapterVersionId version) {
  settle();
  Slab* const slab = slab_of(version);
  if (slab == nullptr) return;
  CHECK(slab->holds == 0);
  if (slab->state != State::kOnTheWay) return give_up(*slab);
  slab->forgotten = true;
  slab->whole = false;
  versions_.erase(version);
}

// --- for a step

void CudaAdapters::begin_step() {
  ++step_;
  if (layered_ && !coming_.empty()) settle();  // what has come by now need not be waited for
}

void CudaAdapters::used(std::vector<int32_t>& slabs) const {
  slabs.clear();
  for (const Slab& slab : slabs_) {
    if (slab.state == State::kThere && slab.used == step_) slabs.push_back(index_of(slab));
  }
}

void CudaAdapters::use(std::span<const int32_t> slabs) {
  for (const int32_t index : slabs) slabs_[static_cast<size_t>(index)].used = step_;
}

const cuda::DeviceLora* CudaAdapters::find(AdapterVersionId version, int32_t module) {
  const auto found = copies_.find(version);
  if (found == copies_.end() || found->second.modules.size() <= static_cast<size_t>(module)) return nullptr;
  const Copy::Pair& pair = found->second.modules[static_cast<size_t>(module)];
  return use_if_there(pair.slab) ? &pair.lora : nullptr;
}

const DeviceSaved* CudaAdapters::find_saved(AdapterVersionId version) {
  const auto found = copies_.find(version);
  return found != copies_.end() && use_if_there(found->second.saved_slab) ? &found->second.saved : nullptr;
}

const Error* CudaAdapters::failure_of(AdapterVersionId version) const {
  const Slab* const slab = slab_of(version);
  return slab != nullptr && slab->state == State::kFailed ? &slab->error : nullptr;
}

bool CudaAdapters::is_arriving(AdapterVersionId version) const {
  const Slab* const slab = slab_of(version);
  return slab != nullptr && slab->state == State::kOnTheWay && slab->gate >= 0;
}

const CudaAdapters::Copy* CudaAdapters::arriving_copy(AdapterVersionId version) const {
  if (!is_arriving(version)) return nullptr;
  const auto found = copies_.find(version);
  return found == copies_.end() ? nullptr : &found->second;
}

const cuda::DeviceLora* CudaAdapters::find_arriving(AdapterVersionId version, int32_t module) const {
  const Copy* const copy = arriving_copy(version);
  if (copy == nullptr || copy->modules.size() <= static_cast<size_t>(module)) return nullptr;
  const Copy::Pair& pair = copy->modules[static_cast<size_t>(module)];
  return pair.slab == versions_.at(version) ? &pair.lora : nullptr;
}

const DeviceSaved* CudaAdapters::find_arriving_saved(AdapterVersionId version) const {
  const Copy* const copy = arriving_copy(version);
  return copy != nullptr && copy->saved_slab == versions_.at(version) ? &copy->saved : nullptr;
}

bool CudaAdapters::use_if_there(int32_t index) {
  if (index < 0 || slabs_[static_cast<size_t>(index)].state != State::kThere) return false;
  slabs_[static_cast<size_t>(index)].used = step_;
  return true;
}

Status CudaAdapters::ensure(AdapterVersionId version, std::span<const ModulePair> pairs) {
  std::vector<ModulePair> missing;
  for (const ModulePair& pair : pairs) {
    if (find(version, pair.module) == nullptr) missing.push_back(pair);
  }
  return missing.empty() ? Status() : bring({.version = version, .pairs = missing});
}

Status CudaAdapters::ensure(AdapterVersionId version, const SavedTensors& saved) {
  return find_saved(version) != nullptr ? Status() : bring({.version = version, .saved = &saved});
}

// Uploads, and waits.
Status CudaAdapters::bring(Parts parts) {
  const int64_t bytes = slab_bytes(parts.pairs, parts.saved, shape_);
  listed_ = false;
  const auto offset = room(bytes, step_);
  if (!offset) {
    return Error{ErrorCode::kOverloaded,
                 "The adapters of one step need more GPU memory than adapters may have: " + format_bytes(bytes) +
                     " more beside " + format_bytes(this->bytes()) + " in use, of " + format_bytes(bytes_max()) +
                     "; give adapters more memory, or use fewer of them at a time."};
  }
  const int32_t index = index_of(place(std::move(parts), *offset, bytes, false));
  Slab& slab = slabs_[static_cast<size_t>(index)];
  slab.holds = 1;
  while (slab.state == State::kOnTheWay) {
    ended_.clear();
    uploader_->wait(ended_);
    settle(ended_);
  }
  ++waits_;
  slab.holds = 0;
  if (slab.state == State::kThere) return {};
  Error error = std::move(slab.error);
  give_up(slab);
  return error;
}

void CudaAdapters::drop(AdapterVersionId version) {
  for (Slab& slab : slabs_) {
    if (slab.state != State::kAbsent && slab.version == version && !slab.whole) give_up(slab);
  }
}

void CudaAdapters::check() const {
  arena_.check();
  int64_t taken = 0;
  size_t versions = 0, gates = 0;
  for (const Slab& slab : slabs_) {
    if (slab.state == State::kAbsent) continue;
    taken += slab.bytes;
    CHECK(slab.holds >= 0 && !(slab.forgotten && slab.holds > 0));
    const bool on_the_way = slab.state == State::kOnTheWay;
    CHECK(std::count(coming_.begin(), coming_.end(), index_of(slab)) == (on_the_way ? 1 : 0));
    CHECK(slab.gate < 0 || (on_the_way && slab.arrivals != nullptr));
    gates += slab.gate < 0 ? 0 : 1;
    if (!slab.whole) continue;
    ++versions;
    CHECK(versions_.at(slab.version) == index_of(slab));
  }
  CHECK(taken == bytes() && taken <= bytes_max() && versions == versions_.size());
  CHECK(gates + free_gates_.size() == static_cast<size_t>(gates_.count()));
  for (const auto& [version, copy] : copies_) {
    int32_t parts = 0;
    const auto look_at = [&, id = version](int32_t index, const auto& names) {
      if (index < 0) return;
      ++parts;
      const Slab& slab = slabs_[static_cast<size_t>(index)];
      CHECK(slab.state != State::kAbsent && slab.version == id && names(slab));
    };
    for (size_t module = 0; module < copy.modules.size(); ++module) {
      look_at(copy.modules[module].slab, [&](const Slab& slab) {
        return std::count(slab.modules.begin(), slab.modules.end(), static_cast<int32_t>(module)) == 1;
      });
    }
    look_at(copy.saved_slab, [](const Slab& slab) { return slab.saved; });
    CHECK(parts == copy.parts && parts > 0);
  }
}

}  // namespace loralei
