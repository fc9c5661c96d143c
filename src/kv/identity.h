// SPDX-License-Identifier: Apache-2.0
// KvIdentity: whose keys and values a cached block holds (mechanisms §5). Not a hash:
// the exact bytes of the ordered list of (version digest, effective scale bits,
// first adapted position, first adapted layer and until where) plus the request's
// cache_salt, interned so that comparing is comparing pointers.
//
// Thread: the engine's.
// Ownership: shared; the pool of interned keys forgets those that nobody holds.
// Invariant: two identities are the same pointer exactly when their parts are equal.
// An empty list with an empty salt is the base model.
//
// A sequence's identity may change along its tokens (activated LoRA: the base's before
// the invocation, the adapter's from there on): KvKey lists the pieces. The first adapted
// position is part of the identity, so that a block in which an adapter starts midway can
// only be found by a sequence in which it starts at the same place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/limits.h"
#include "kv/apps.h"

namespace loralei {

using KvIdentity = std::shared_ptr<const std::string>;

struct KvIdentityPart {
  std::array<uint8_t, 32> digest{};
  float scale = 1.0f;
  int32_t first_position = 0;  // 0: adapted from the first token on
  // Where prefixes are lent: below layer `first_layer` the adapter changes nothing of the
  // positions before `until`. In the identity of what stands there `until` is 0, as it
  // does not depend on it; and so it is where it changes all layers.
  int32_t first_layer = 0, until = 0;
};

class KvIdentities {
 public:
  KvIdentity intern(std::span<const KvIdentityPart> parts, std::string_view cache_salt);
  // The base model's with the same salt.
  KvIdentity base_of(const KvIdentity& identity);
  size_t size() const { return known_.size(); }

 private:
  std::unordered_map<std::string, std::weak_ptr<const std::string>> known_;
  size_t purge_at_ = 64;
};

// Its adapters, in their order; none: the base model's.
int32_t identity_adapters(const KvIdentity& identity);
KvIdentityPart identity_part(const KvIdentity& identity, int32_t index);
bool identity_salted(const KvIdentity& identity);
std::string_view identity_salt(const KvIdentity& identity);
// Below this layer all it names is the base's: K, V and the residual stream.
inline constexpr int32_t kAllLayers = INT32_MAX;
int32_t identity_base_layers(const KvIdentity& identity);

struct KvPiece {
  int32_t first_position = 0;
  KvIdentity identity;
};

// Pieces sorted by first_position; the first starts at 0. And who asks, which is no part
// of what is computed.
struct KvKey {
  std::vector<KvPiece> pieces;
  KvAppRef app;       // null: nobody that is named
  bool exact = true;  // it takes nothing that was encoded with loss, nor what was computed from that

  // Identity in force at `position`.
  const KvIdentity& at(int32_t position) const {
    size_t piece = pieces.size() - 1;
    while (piece > 0 && pieces[piece].first_position > position) --piece;
    return pieces[piece].identity;
  }
  // That names a block: in force at its last token.
  const KvIdentity& of_block(int32_t block) const { return at((block + 1) * kKvBlockTokens - 1); }
};

// What an adapter of a request contributes to the key: active from first_position on, and
// in all its layers from `until` on.
KvKey make_kv_key(KvIdentities& identities, std::span<const KvIdentityPart> parts, const std::string& cache_salt);

}  // namespace loralei
