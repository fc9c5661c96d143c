// SPDX-License-Identifier: Apache-2.0
#include "kv/identity.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace loralei {
namespace {

constexpr size_t kPartBytes = sizeof(KvIdentityPart::digest) + sizeof(uint32_t) + 3 * sizeof(int32_t);

}  // namespace

int32_t identity_adapters(const KvIdentity& identity) {
  uint32_t count = 0;
  std::memcpy(&count, identity->data(), sizeof count);
  return static_cast<int32_t>(count);
}

KvIdentityPart identity_part(const KvIdentity& identity, int32_t index) {
  CHECK(index >= 0 && index < identity_adapters(identity));
  const char* from = identity->data() + sizeof(uint32_t) + static_cast<size_t>(index) * kPartBytes;
  KvIdentityPart part;
  const auto get = [&from](void* bytes, size_t count) {
    std::memcpy(bytes, from, count);
    from += count;
  };
  get(part.digest.data(), part.digest.size());
  get(&part.scale, sizeof part.scale);
  get(&part.first_position, sizeof part.first_position);
  get(&part.first_layer, sizeof part.first_layer);
  get(&part.until, sizeof part.until);
  return part;
}

std::string_view identity_salt(const KvIdentity& identity) {
  return std::string_view(*identity).substr(sizeof(uint32_t) +
                                            static_cast<size_t>(identity_adapters(identity)) * kPartBytes);
}

int32_t identity_base_layers(const KvIdentity& identity) {
  int32_t layers = kAllLayers;
  for (int32_t index = 0; index < identity_adapters(identity); ++index) {
    const KvIdentityPart part = identity_part(identity, index);
    layers = std::min(layers, part.until > 0 ? 0 : part.first_layer);
  }
  return layers;
}

bool identity_salted(const KvIdentity& identity) { return !identity_salt(identity).empty(); }

KvIdentity KvIdentities::base_of(const KvIdentity& identity) {
  return identity_adapters(identity) == 0 ? identity : intern({}, identity_salt(identity));
}

KvIdentity KvIdentities::intern(std::span<const KvIdentityPart> parts, std::string_view cache_salt) {
  std::string key;
  const auto put = [&key](const void* bytes, size_t count) { key.append(static_cast<const char*>(bytes), count); };
  const auto count = static_cast<uint32_t>(parts.size());
  put(&count, sizeof count);
  for (const KvIdentityPart& part : parts) {
    const uint32_t scale_bits = std::bit_cast<uint32_t>(part.scale);
    put(part.digest.data(), part.digest.size());
    put(&scale_bits, sizeof scale_bits);
    put(&part.first_position, sizeof part.first_position);
    put(&part.first_layer, sizeof part.first_layer);
    put(&part.until, sizeof part.until);
  }
  key += cache_salt;  // last, so its length needs no mark
  const auto found = known_.find(key);
  if (found != known_.end()) {
    if (KvIdentity identity = found->second.lock()) return identity;
  }
  auto identity = std::make_shared<const std::string>(key);
  known_[std::move(key)] = identity;
  if (known_.size() >= purge_at_) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    purge_at_ = std::max<size_t>(64, 2 * known_.size());
  }
  return identity;
}

KvKey make_kv_key(KvIdentities& identities, std::span<const KvIdentityPart> parts, const std::string& cache_salt) {
  std::vector<int32_t> starts{0};
  for (const KvIdentityPart& part : parts) {
    starts.push_back(part.first_position);
    starts.push_back(part.until);
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  KvKey key;
  std::vector<KvIdentityPart> active;
  for (const int32_t start : starts) {
    active.clear();
    for (const KvIdentityPart& part : parts) {
      if (part.first_position > start) continue;
      active.push_back(part);
      if (start < part.until) active.back().until = 0;
    }
    key.pieces.push_back({start, identities.intern(active, cache_salt)});
  }
  return key;
}

}  // namespace loralei
