// SPDX-License-Identifier: Apache-2.0
// What of a KV cache others are told: which blocks of whom are held, and which are not
// any more.
#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/sha256.h"
#include "kv/kv_cache.h"

namespace loralei {
namespace {

uint64_t hash_of(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span("loralei kv owner")));
  hash.update(std::as_bytes(std::span(bytes)));
  return kv_event_hash(hash.finish());
}

KvOwner owner_of(const KvIdentity& identity) {
  KvOwner owner;
  owner.adapters = identity_adapters(identity);
  if (owner.adapters > 0) {
    const KvIdentityPart part = identity_part(identity, 0);
    owner.adapter = part.digest;
    owner.scale = part.scale;
  }
  if (identity_salted(identity)) owner.salt = hash_of(identity_salt(identity));
  owner.identity = owner.adapters > 0 || owner.salt != 0 ? hash_of(*identity) : 0;
  return owner;
}

}  // namespace

KvCache::Telling::~Telling() {
  if (disk != nullptr) disk->tell(nullptr);
}

void KvCache::tell(KvEvents& events) {
  CHECK(holdings_.size() == 0 && telling_ == nullptr && windows_ == nullptr && states_ == nullptr);
  telling_ = std::make_unique<Telling>(events, spilling_ == nullptr ? nullptr : spilling_->disk);
  if (telling_->disk != nullptr) telling_->disk->tell(&telling_->teller);
  set_capacity(total());
}

KvEvent KvCache::stored_event(int32_t holding) const {
  KvEvent event{.kind = KvEvent::Kind::kStored,
                .hash = kv_event_hash(names_[static_cast<size_t>(holding)]),
                .owner = owner_of(holdings_.identity(holding))};
  const int32_t parent = holdings_.parent(holding);
  if (parent != kNoHolding) event.parent = kv_event_hash(names_[static_cast<size_t>(parent)]);
  const std::span<const TokenId> tokens = texts_.tokens(holdings_.text(holding));
  std::copy(tokens.begin(), tokens.end(), event.tokens.begin());
  return event;
}

// After anything by which it may have come to be there, or not to be any more.
void KvCache::tell_of(int32_t holding) {
  if (telling_ == nullptr) return;
  if (form_of(holding) == Form::kHollow) return tell_gone(holding);
  if (is_told(holding)) return;
  if (telling_->teller.behind()) return telling_->teller.miss();
  tell_path(holding, 0);
}

void KvCache::tell_gone(int32_t holding) {
  if (telling_ == nullptr || !is_told(holding)) return;
  telling_->teller.put({.kind = KvEvent::Kind::kRemoved, .hash = kv_event_hash(names_[static_cast<size_t>(holding)])});
  telling_->told[static_cast<size_t>(holding)] = 0;
}

// Those before it first: whoever is told makes nothing of a block whose parent he does
// not know. False: there are no more than `places_left` places.
bool KvCache::tell_path(int32_t holding, size_t places_left) {
  Telling& telling = *telling_;
  telling.path.clear();
  for (int32_t one = holding; one != kNoHolding && !is_told(one); one = holdings_.parent(one)) {
    if (form_of(one) != Form::kHollow) telling.path.push_back(one);
  }
  for (; !telling.path.empty(); telling.path.pop_back()) {
    const int32_t one = telling.path.back();
    if (places_left > 0 && telling.teller.room() <= places_left) return false;
    if (!telling.teller.put(stored_event(one))) return false;
    telling.told[static_cast<size_t>(one)] = telling.teller.picture();
    if (telling.disk != nullptr) telling.disk->tell_of(names_[static_cast<size_t>(one)]);
    if (telling.teller.behind()) return false;
  }
  return true;
}

bool KvCache::tell_more() {
  constexpr int32_t kAtOnce = 256;  // holdings that are looked at
  if (telling_ == nullptr) return false;
  Telling& telling = *telling_;
  const bool settled = telling.disk == nullptr || telling.disk->settled();
  if (telling.teller.behind()) {
    if (!telling.teller.begin_anew()) return true;
    telling.next = 0;
  }
  const size_t for_news = telling.teller.capacity() / 4;
  for (int32_t looked = 0; looked < kAtOnce && telling.next < holdings_.capacity(); ++looked, ++telling.next) {
    const int32_t holding = telling.next;
    if (!holdings_.contains(holding) || is_told(holding) || form_of(holding) == Form::kHollow) continue;
    if (!tell_path(holding, for_news)) return true;
  }
  if (telling.next < holdings_.capacity()) return true;
  telling.next = Telling::kWhole;
  return !settled;
}

// Outside of a picture that is being told what is told is what is there.
void KvCache::check_told() const {
  if (telling_ == nullptr) return;
  const bool whole = !telling_->teller.behind() && telling_->next == Telling::kWhole;
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    const bool there = holdings_.contains(holding) && form_of(holding) != Form::kHollow;
    if (is_told(holding)) CHECK(there);
    if (there && whole) CHECK(is_told(holding));
  }
}

}  // namespace loralei
