// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_adapters.h"

#include <string>

#include "base/units.h"
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

}  // namespace

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

const CudaAdapters::Entry* CudaAdapters::find(const LoraPair& pair, AdapterVersionId version) {
  const auto found = entries_.find(&pair);
  if (found == entries_.end() || found->second.version != version || !same(found->second.host, pair)) return nullptr;
  slabs_[static_cast<size_t>(found->second.slab)].used = step_;
  return &found->second;
}

void CudaAdapters::forget(int32_t slab) {
  Slab& gone = slabs_[static_cast<size_t>(slab)];
  for (const LoraPair* pair : gone.pairs) {
    const auto found = entries_.find(pair);
    if (found != entries_.end() && found->second.slab == slab) entries_.erase(found);
  }
  bytes_ -= gone.memory.size_bytes();
  gone = Slab();
}

void CudaAdapters::drop(const LoraPair* first, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const auto found = entries_.find(first + i);
    if (found != entries_.end()) forget(found->second.slab);
  }
}

Status CudaAdapters::make_room(int64_t bytes) {
  while (bytes_ + bytes > bytes_max_) {
    int32_t oldest = -1;
    for (size_t i = 0; i < slabs_.size(); ++i) {
      const Slab& slab = slabs_[i];
      if (slab.pairs.empty() || slab.used == step_) continue;
      if (oldest < 0 || slab.used < slabs_[static_cast<size_t>(oldest)].used) oldest = static_cast<int32_t>(i);
    }
    if (oldest < 0) {
      return Error{ErrorCode::kOverloaded,
                   "The adapters of one step need more GPU memory than adapters may have: " + format_bytes(bytes) +
                       " more beside " + format_bytes(bytes_) + " in use, of " + format_bytes(bytes_max_) +
                       "; give adapters more memory, or use fewer of them at a time."};
    }
    forget(oldest);
  }
  return {};
}

Status CudaAdapters::ensure(std::span<const LoraPair* const> pairs, CudaStream& stream, AdapterVersionId version) {
  int64_t bytes = 0;
  std::vector<const LoraPair*> missing;
  for (const LoraPair* pair : pairs) {
    if (find(*pair, version) != nullptr) continue;
    missing.push_back(pair);
    bytes += pair_bytes(*pair);
  }
  if (missing.empty()) return {};
  TRY(make_room(bytes));
  Slab fresh;
  TRY_ASSIGN(fresh.memory, DeviceBuffer::allocate(bytes));
  fresh.pairs = std::move(missing);
  fresh.used = step_;

  size_t at = 0;
  while (at < slabs_.size() && !slabs_[at].pairs.empty()) ++at;
  std::byte* next = fresh.memory.data();
  Status copied;
  const auto put = [&](const void* host, int64_t count_bytes) -> const void* {
    if (host == nullptr) return nullptr;
    if (copied.ok()) copied = copy_to_device(next, host, count_bytes, stream);
    const void* place = next;
    next += aligned(count_bytes);
    return place;
  };
  std::vector<Entry> made;
  for (const LoraPair* pair : fresh.pairs) {
    Entry& entry = made.emplace_back();
    entry.host = *pair;
    entry.version = version;
    entry.slab = static_cast<int32_t>(at);
    cuda::DeviceLora& lora = entry.lora;
    lora.scaling = pair->scaling;
    lora.rank = pair->rank;
    lora.in = pair->in;
    lora.out = pair->out;
    lora.dtype = pair->a_scale != nullptr ? DType::kI8 : pair->dtype;
    lora.present = 1;
    if (pair->rank > 0) {
      lora.a = put(pair->a, pair->rank * lora_a_stride_bytes(*pair));
      lora.b_t = put(pair->b_t, pair->rank * lora_b_stride_bytes(*pair));
      lora.a_scale = static_cast<const float*>(put(pair->a_scale, scale_bytes(*pair, pair->in)));
      lora.b_scale = static_cast<const float*>(put(pair->b_scale, scale_bytes(*pair, pair->out)));
    }
    lora.b_bias = static_cast<const float*>(put(pair->b_bias, floats(pair->out)));
    lora.bias_delta = static_cast<const float*>(put(pair->bias_delta, floats(pair->out)));
  }
  const Status done = stream.synchronize();  // the host's side may go away after this, failed or not
  TRY(copied);
  TRY(done);
  for (size_t i = 0; i < made.size(); ++i) entries_[fresh.pairs[i]] = made[i];
  bytes_ += bytes;
  ++uploads_;
  if (at == slabs_.size()) slabs_.emplace_back();
  slabs_[at] = std::move(fresh);
  return {};
}

}  // namespace loralei
