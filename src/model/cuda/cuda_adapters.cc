// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_adapters.h"

#include <algorithm>
#include <string>

#include "base/units.h"
#include "model/cuda/cuda_kv.h"
#include "ops/lora_factors.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 16;  // what vector loads of factors want
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
int64_t floats(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

bool same(const LoraPair& a, const LoraPair& b) {
  return a.a == b.a && a.b_t == b.b_t && a.dtype == b.dtype && a.rank == b.rank && a.in == b.in && a.out == b.out &&
         a.scaling == b.scaling && a.b_bias == b.b_bias && a.bias_delta == b.bias_delta && a.a_scale == b.a_scale &&
         a.b_scale == b.b_scale;
}

// Scales of int8 factors whose rows have `count` numbers: A's, or B's.
int64_t scale_bytes(const LoraPair& pair, int64_t count) {
  return pair.a_scale == nullptr ? 0 : floats(pair.rank * lora_quant_groups(count));
}

bool present(const LoraPair& pair) { return pair.rank > 0 || pair.bias_delta != nullptr; }

int64_t slab_bytes(std::span<const LoraPair* const> pairs) {
  int64_t bytes = 0;
  for (const LoraPair* pair : pairs) bytes += CudaAdapters::pair_bytes(*pair);
  return RangeAllocator::rounded(bytes);
}

std::vector<const LoraPair*> present_pairs(std::span<const LoraPair> pairs) {
  std::vector<const LoraPair*> found;
  for (const LoraPair& pair : pairs) {
    if (present(pair)) found.push_back(&pair);
  }
  return found;
}

// Where the pair will lie from upload.to + at on, and its parts of the upload; `at` moves behind it.
cuda::DeviceLora lay_out(const LoraPair& pair, int64_t& at, Upload& upload) {
  const auto put = [&](const void* host, int64_t bytes) -> const void* {
    if (host == nullptr) return nullptr;
    upload.parts.push_back({host, at, bytes});
    const void* place = upload.to + at;
    at += aligned(bytes);
    return place;
  };
  cuda::DeviceLora lora;
  lora.scaling = pair.scaling;
  lora.rank = pair.rank;
  lora.in = pair.in;
  lora.out = pair.out;
  lora.dtype = pair.a_scale != nullptr ? DType::kI8 : pair.dtype;
  lora.present = 1;
  if (pair.rank > 0) {
    lora.a = put(pair.a, pair.rank * lora_a_stride_bytes(pair));
    lora.b_t = put(pair.b_t, pair.rank * lora_b_stride_bytes(pair));
    lora.a_scale = static_cast<const float*>(put(pair.a_scale, scale_bytes(pair, pair.in)));
    lora.b_scale = static_cast<const float*>(put(pair.b_scale, scale_bytes(pair, pair.out)));
  }
  lora.b_bias = static_cast<const float*>(put(pair.b_bias, floats(pair.out)));
  lora.bias_delta = static_cast<const float*>(put(pair.bias_delta, floats(pair.out)));
  return lora;
}

}  // namespace

Result<CudaAdapters> CudaAdapters::create(const Options& options) {
  CudaAdapters made;
  made.arena_ = RangeAllocator(options.bytes_max);
  TRY_ASSIGN(made.memory_, allocate_on_device(made.arena_.size_bytes(), "The adapters' share",
                                              "give adapters less memory, or the model fewer rows or less context."));
  TRY_ASSIGN(made.uploader_, Uploader::create({options.device, options.staging_bytes}));
  return made;
}

int64_t CudaAdapters::pair_bytes(const LoraPair& pair) {
  int64_t bytes = 0;
  if (pair.rank > 0) {
    bytes += aligned(pair.rank * lora_a_stride_bytes(pair)) + aligned(pair.rank * lora_b_stride_bytes(pair));
    bytes += aligned(scale_bytes(pair, pair.in)) + aligned(scale_bytes(pair, pair.out));
  }
  if (pair.b_bias != nullptr) bytes += aligned(floats(pair.out));
  if (pair.bias_delta != nullptr) bytes += aligned(floats(pair.out));
  return bytes;
}

int64_t CudaAdapters::adapter_bytes(std::span<const LoraPair> pairs) {
  int64_t bytes = 0;
  for (const LoraPair& pair : pairs) bytes += present(pair) ? pair_bytes(pair) : 0;
  return RangeAllocator::rounded(bytes);
}

// --- slabs

CudaAdapters::Slab* CudaAdapters::slab_of(AdapterVersionId version) {
  const auto found = versions_.find(version);
  return found == versions_.end() ? nullptr : &slabs_[static_cast<size_t>(found->second)];
}

// A slab of these pairs on its way to [offset, offset + bytes).
CudaAdapters::Slab& CudaAdapters::place(std::span<const LoraPair* const> pairs, AdapterVersionId version,
                                        int64_t offset, int64_t bytes, std::shared_ptr<const void> storage) {
  const auto absent = [](const Slab& slab) { return slab.state == State::kAbsent; };
  auto free = std::find_if(slabs_.begin(), slabs_.end(), absent);
  if (free == slabs_.end()) free = slabs_.emplace(slabs_.end());
  Slab& slab = *free;
  slab = {.state = bytes > 0 ? State::kOnTheWay : State::kThere,
          .offset = offset,
          .bytes = bytes,
          .pairs = {pairs.begin(), pairs.end()},
          .used = step_};
  Upload upload{.id = static_cast<uint64_t>(index_of(slab)),
                .to = memory_.data() + offset,
                .bytes = bytes,
                .keeps = std::move(storage)};
  int64_t at = 0;
  for (const LoraPair* pair : pairs) {
    entries_[pair] = {lay_out(*pair, at, upload), *pair, version, index_of(slab)};
  }
  if (bytes > 0) uploader_->start(std::move(upload));
  return slab;
}

void CudaAdapters::give_up(Slab& slab) {
  CHECK(slab.state != State::kAbsent && slab.state != State::kOnTheWay && slab.holds == 0);
  for (const LoraPair* pair : slab.pairs) {
    const auto found = entries_.find(pair);
    if (found != entries_.end() && found->second.slab == index_of(slab)) entries_.erase(found);
  }
  if (slab.version != AdapterVersionId()) versions_.erase(slab.version);
  if (slab.bytes > 0) arena_.release(slab.offset);
  slab = Slab();
}

// The start of a free range, for which the least recently used slabs are given up, but for those used in step `keep`.
std::optional<int64_t> CudaAdapters::room(int64_t bytes, uint64_t keep) {
  if (bytes == 0) return 0;
  for (;;) {
    if (const auto offset = arena_.allocate(bytes)) return offset;
    Slab* oldest = nullptr;
    for (Slab& slab : slabs_) {
      if (slab.state != State::kThere || slab.bytes == 0 || slab.holds > 0 || slab.used == keep) continue;
      if (oldest == nullptr || slab.used < oldest->used) oldest = &slab;
    }
    if (oldest == nullptr) return std::nullopt;
    give_up(*oldest);
  }
}

// --- uploads that have ended

void CudaAdapters::settle() {
  ended_.clear();
  uploader_->poll(ended_);
  settle(ended_);
}

void CudaAdapters::settle(const std::vector<UploadEnd>& ended) {
  for (const UploadEnd& end : ended) {
    Slab& slab = slabs_[static_cast<size_t>(end.id)];
    slab.state = end.status.ok() ? State::kThere : State::kFailed;
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

int64_t CudaAdapters::evictable_bytes() const {
  int64_t bytes = 0;
  for (const Slab& slab : slabs_) bytes += slab.state == State::kThere && slab.holds == 0 ? slab.bytes : 0;
  return bytes;
}

// Ranges for the adapters that are missing, in their order; without room for all of them, for none.
bool CudaAdapters::reserve(std::span<const AdapterFactors> adapters, std::vector<int64_t>& offsets) {
  offsets.clear();
  int64_t missing = 0;
  for (const AdapterFactors& adapter : adapters) {
    if (slab_of(adapter.version) == nullptr) missing += adapter_bytes(adapter.pairs);
  }
  bool fits = missing <= arena_.free_bytes() + evictable_bytes();
  std::vector<int64_t> taken;
  for (const AdapterFactors& adapter : adapters) {
    if (!fits) break;
    if (slab_of(adapter.version) != nullptr) continue;
    const int64_t bytes = adapter_bytes(adapter.pairs);
    const auto offset = room(bytes, 0);
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
    const bool own = std::any_of(adapters.begin(), adapters.end(),
                                 [&](const AdapterFactors& adapter) { return adapter.version == slab.version; });
    return slab.state == State::kOnTheWay || slab.holds > (own ? 1 : 0);
  });
}

Result<bool> CudaAdapters::hold(std::span<const AdapterFactors> adapters) {
  settle();
  int64_t all_bytes = 0;
  for (const AdapterFactors& adapter : adapters) all_bytes += adapter_bytes(adapter.pairs);
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
  if (!fits && !held_by_others(adapters)) {  // free ranges are in pieces: from the start, one behind the other
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
    Slab& slab = place(pairs, adapter.version, *offset++, slab_bytes(pairs), adapter.storage);
    slab.version = adapter.version;
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

void CudaAdapters::release(AdapterVersionId version) {
  Slab* const slab = slab_of(version);
  CHECK(slab != nullptr && slab->holds > 0);
  slab->used = step_;
  if (--slab->holds == 0 && slab->state == State::kFailed) give_up(*slab);
}

void CudaAdapters::forget(AdapterVersionId version) {
  settle();
  Slab* const slab = slab_of(version);
  if (slab == nullptr) return;
  CHECK(slab->holds == 0);
  if (slab->state != State::kOnTheWay) return give_up(*slab);
  slab->forgotten = true;
  slab->version = {};
  versions_.erase(version);
}

// --- for a step

const CudaAdapters::Entry* CudaAdapters::find(const LoraPair& pair, AdapterVersionId version) {
  const auto found = entries_.find(&pair);
  if (found == entries_.end() || found->second.version != version || !same(found->second.host, pair)) return nullptr;
  Slab& slab = slabs_[static_cast<size_t>(found->second.slab)];
  if (slab.state != State::kThere) return nullptr;
  slab.used = step_;
  return &found->second;
}

Status CudaAdapters::ensure(std::span<const LoraPair* const> pairs, AdapterVersionId version) {
  std::vector<const LoraPair*> missing;
  for (const LoraPair* pair : pairs) {
    if (find(*pair, version) != nullptr) continue;
    missing.push_back(pair);
  }
  if (missing.empty()) return {};
  const int64_t bytes = slab_bytes(missing);
  const auto offset = room(bytes, step_);
  if (!offset) {
    return Error{ErrorCode::kOverloaded,
                 "The adapters of one step need more GPU memory than adapters may have: " + format_bytes(bytes) +
                     " more beside " + format_bytes(this->bytes()) + " in use, of " + format_bytes(bytes_max()) +
                     "; give adapters more memory, or use fewer of them at a time."};
  }
  const int32_t index = index_of(place(missing, version, *offset, bytes, nullptr));
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

void CudaAdapters::drop(const LoraPair* first, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const auto found = entries_.find(first + i);
    if (found != entries_.end()) give_up(slabs_[static_cast<size_t>(found->second.slab)]);
  }
}

void CudaAdapters::check() const {
  arena_.check();
  int64_t taken = 0;
  size_t versions = 0;
  for (const Slab& slab : slabs_) {
    if (slab.state == State::kAbsent) continue;
    taken += slab.bytes;
    CHECK(slab.holds >= 0 && !(slab.forgotten && slab.holds > 0));
    if (slab.version == AdapterVersionId()) continue;
    ++versions;
    CHECK(versions_.at(slab.version) == index_of(slab));
  }
  CHECK(taken == bytes() && taken <= bytes_max() && versions == versions_.size());
  for (const auto& [pair, entry] : entries_) {
    const Slab& slab = slabs_[static_cast<size_t>(entry.slab)];
    CHECK(slab.state != State::kAbsent && std::count(slab.pairs.begin(), slab.pairs.end(), pair) == 1);
  }
}

}  // namespace loralei
