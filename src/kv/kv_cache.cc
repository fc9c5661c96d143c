// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace loralei {
KvLease::KvLease(KvLease&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      blocks_(std::exchange(other.blocks_, {})),
      holdings_(std::exchange(other.holdings_, {})),
      tables_(other.tables_),
      window_first_(std::exchange(other.window_first_, 0)),
      exact_(other.exact_),
      state_(std::move(other.state_)),
      state_at_(std::exchange(other.state_at_, kNoState)),
      keep_at_(std::exchange(other.keep_at_, kKeepNowhere)) {}

KvLease& KvLease::operator=(KvLease&& other) noexcept {
  if (this != &other) {
    release();
    cache_ = std::exchange(other.cache_, nullptr);
    blocks_ = std::exchange(other.blocks_, {});
    holdings_ = std::exchange(other.holdings_, {});
    tables_ = other.tables_;
    window_first_ = std::exchange(other.window_first_, 0);
    exact_ = other.exact_;
    state_ = std::move(other.state_);
    state_at_ = std::exchange(other.state_at_, kNoState);
    keep_at_ = std::exchange(other.keep_at_, kKeepNowhere);
  }
  return *this;
}

void KvLease::release() {
  if (cache_ != nullptr) std::exchange(cache_, nullptr)->release(*this);
}

Result<std::unique_ptr<KvCache>> KvCache::create(const KvShape& shape, int32_t blocks, bool prefix_cache,
                                                 Ledger& ledger, const Clock& clock, int32_t capacity) {
  TRY_ASSIGN(auto pool, BlockPool::create(shape, blocks, ledger, capacity));
  return std::unique_ptr<KvCache>(new KvCache(std::move(pool), prefix_cache, clock));
}

std::unique_ptr<KvCache> KvCache::create_ids(int32_t blocks, bool prefix_cache, const Clock& clock,
                                             const BlockPool::Counted& counted) {
  return std::unique_ptr<KvCache>(new KvCache(BlockPool::create_ids(blocks, counted), prefix_cache, clock));
}

int32_t KvCache::find(const KvKey& key, std::span<const TokenId> tokens, int32_t block, int32_t& text) const {
  text = texts_.find(text, kv_block_tokens(tokens, block));
  return text == kNoText ? kNoHolding : holdings_.find(text, key.of_block(block));
}

KvMatch KvCache::peek(const KvKey& key, std::span<const TokenId> tokens, int32_t limit) const {
  KvMatch match;
  if (!prefix_cache_) return match;
  const int32_t blocks_max = std::min<int32_t>(limit, static_cast<int32_t>(tokens.size())) / kKvBlockTokens;
  if (windows_ != nullptr) return peek_window(key, tokens, blocks_max);
  if (states_ != nullptr) return peek_state(key, tokens, blocks_max);
  int32_t text = kNoText;
  while (match.blocks < blocks_max) {
    const int32_t holding = find(key, tokens, match.blocks, text);
    if (holding == kNoHolding || form_of(holding) == Form::kHollow) break;
    if (key.exact && !is_exact(holding)) break;
    ++match.blocks;
    if (holdings_.pins(holding) == 0) ++match.evictable;
  }
  match.held = match.blocks;
  return match;
}

KvLease KvCache::match(const KvKey& key, std::span<const TokenId> tokens, int32_t limit, int32_t blocks_max) {
  const KvMatch found = peek(key, tokens, limit);
  KvLease lease = lease_prefix(key, tokens, found.blocks, blocks_max, true);
  if (states_ != nullptr) begin_state(lease, found);
  return lease;
}

// The first `blocks` that are there (peek). `counts`: that is a find.
KvLease KvCache::lease_prefix(const KvKey& key, std::span<const TokenId> tokens, int32_t blocks, int32_t blocks_max,
                              bool counts) {
  KvLease lease;
  lease.cache_ = this;
  lease.tables_ = tables_;
  const auto places_max = static_cast<size_t>(std::max(blocks, blocks_max));
  lease.blocks_.reserve(places_max * static_cast<size_t>(lease.tables()));
  lease.holdings_.reserve(prefix_cache_ ? places_max : 0);
  int32_t text = kNoText;
  const int64_t now_ns = clock_.now_ns();
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t holding = find(key, tokens, block, text);
    if (counts) {
      times_.reuse_gap.add(now_ns - holdings_.used_ns(holding));
      holdings_.count_find(holding, now_ns);
      ++found_;
    }
    holdings_.pin(holding, now_ns);
    used_by(holding, key.app);
    lease.exact_ = lease.exact_ && is_exact(holding);
    lease.holdings_.push_back(holding);
    if (windows_ == nullptr) lease.blocks_.push_back(holdings_.block(holding));
  }
  if (windows_ != nullptr) lease_window(lease);
  return lease;
}

bool KvCache::reserve(KvLease& lease, int32_t tokens) {
  CHECK(lease.cache_ == this);
  const int32_t missing = (kv_blocks_for(tokens) - lease.places()) * lease.tables();
  if (missing > available()) return false;
  for (int32_t i = 0; i < missing; ++i) lease.blocks_.push_back(take_block());
  return true;
}

// CHECKs that one is available().
int32_t KvCache::take_block() {
  auto block = pool_->take();
  if (!block) {
    evict();
    block = pool_->take();
  }
  return *block;
}

void KvCache::publish(KvLease& lease, const KvKey& key, std::span<const TokenId> tokens, int32_t computed) {
  CHECK(lease.cache_ == this);
  if (!prefix_cache_) return;
  const int32_t full = computed / kKvBlockTokens;
  CHECK(full <= lease.places() && computed <= static_cast<int32_t>(tokens.size()));
  for (int32_t block = lease.shared(); block < full; ++block) {
    const int32_t parent = block == 0 ? kNoHolding : lease.holdings_.back();
    const int32_t before = parent == kNoHolding ? kNoText : holdings_.text(parent);
    int32_t text = before;
    int32_t holding = find(key, tokens, block, text);
    if (holding == kNoHolding) {
      holding = add(lease, key, tokens, block, before);
      if (holding == kNoHolding) return;
    } else if (!join(lease, key, holding, block)) {
      return;
    }
    lease.holdings_.push_back(holding);
  }
}

// The lease's own block of this number becomes a holding; kNoHolding: there is no room
// for one more.
int32_t KvCache::add(KvLease& lease, const KvKey& key, std::span<const TokenId> tokens, int32_t block, int32_t before) {
  if (holdings_.full() && pages() > 0) give_up_coded();
  if (holdings_.full() && windows_ != nullptr) {  // some have no block any more
    const int32_t leaf = first_of({Form::kPlain}, true);
    if (leaf != kNoHolding) remove(leaf);
  }
  if (holdings_.full()) return kNoHolding;
  const int32_t parent = block == 0 ? kNoHolding : lease.holdings_.back();
  const int32_t text = texts_.hold(before, kv_block_tokens(tokens, block));
  const int32_t holding = holdings_.add({.parent = parent, .text = text, .identity = key.of_block(block)},
                                        tables_.full > 0 ? lease.place(block)[0] : kNoBlock, clock_.now_ns());
  if (windows_ != nullptr) keep_window(lease, holding, lease.place(block), block);
  forms_.at(holding) = {.exact = lease.exact_, .streams = !lenders_.empty()};
  note_lender(holding);
  if (!names_.empty()) name(holding, parent, key, tokens, block);
  const AppSetId apps = apps_.alone(key.app != nullptr ? key.app : apps_.asks(""));
  apps_.hold(apps);
  holdings_.set_apps(holding, apps);
  ++stored_;
  tell_of(holding);
  return holding;
}

// By the text so far and who computed on it: the same in every process.
void KvCache::name(int32_t holding, int32_t parent, const KvKey& key, std::span<const TokenId> tokens, int32_t block) {
  const KvDiskKey before = parent == kNoHolding ? KvDiskKey{} : names_[static_cast<size_t>(parent)];
  names_[static_cast<size_t>(holding)] = kv_disk_key(before, *key.of_block(block), kv_block_tokens(tokens, block));
}

// The lease changes over to what is held there, or its own block takes the place of that:
// of what lies there encoded, and of a block that is not exact where its own is. A blob
// may stay if it was made of the same bytes, and else goes if nobody needs it. False:
// neither can be.
bool KvCache::join(KvLease& lease, const KvKey& key, int32_t holding, int32_t place) {
  if (windows_ != nullptr) {
    join_window(lease, key, holding, place);
    return true;
  }
  int32_t& own = lease.blocks_[static_cast<size_t>(place)];
  HoldingForm& form = forms_.at(holding);
  const bool raw = holdings_.block(holding) != kNoBlock;
  const bool same_blob = !forms_.coded(holding) || (lease.exact_ && form.blob_exact);
  const bool replaces = holdings_.pins(holding) == 0 && (same_blob || form.dependants == 0);
  const bool changes_over = raw && (is_exact(holding) || !key.exact);
  if (changes_over && (is_exact(holding) || !lease.exact_ || !replaces)) {
    holdings_.pin(holding, clock_.now_ns());
    pool_->give_back(own);
    own = holdings_.block(holding);
    lease.exact_ = lease.exact_ && is_exact(holding);
  } else if (replaces) {
    if (!same_blob) clear_blob(holding);
    if (raw) pool_->give_back(holdings_.block(holding));
    holdings_.set_block(holding, own);
    form.exact = lease.exact_;
    form.plain = form.decoded = false;
    form.streams = !lenders_.empty();
    note_lender(holding);
    holdings_.pin(holding, clock_.now_ns());
    tell_of(holding);
  } else {
    return false;
  }
  used_by(holding, key.app);
  return true;
}

int32_t KvCache::exclusive(const KvLease& lease) const {
  if (windows_ != nullptr) return exclusive_window(lease);
  // Pins never grow along a path, so the blocks that only this lease pins are the last
  // ones of its shared part.
  int32_t shared = lease.shared();
  while (shared > 0 && holdings_.pins(lease.holdings_[static_cast<size_t>(shared) - 1]) == 1) --shared;
  return static_cast<int32_t>(lease.blocks_.size()) - shared;
}

Status KvCache::resize(int32_t blocks, std::span<KvLease* const> leases) {
  CHECK(leased() <= blocks);
  while (total() - pool_->free() > blocks) evict();
  TRY_ASSIGN(const std::vector<int32_t> names, pool_->resize(blocks));
  set_capacity(blocks);
  if (blocks < std::ssize(names)) {  // else nothing has moved
    holdings_.rename_blocks(names);
    if (resting_ != nullptr) resting_->arena.rename_blocks(names);
    if (windows_ != nullptr) rename_window(names);
  }
  for (KvLease* lease : leases) {
    CHECK(lease->cache_ == this || lease->blocks_.empty());
    for (int32_t& block : lease->blocks_) {
      if (block != kNoBlock) block = names[static_cast<size_t>(block)];
    }
  }
  return {};
}

// Of so many blocks; what is encoded takes less of them than one, and holdings in front
// of a window may take none.
void KvCache::set_capacity(int32_t blocks) {
  constexpr int32_t kCodedOfBlock = 16, kPassedOfBlock = 8;
  int32_t holdings = resting_ == nullptr ? blocks : blocks * kCodedOfBlock;
  if (tables_.full == 0) holdings = blocks * kPassedOfBlock;
  texts_.set_capacity(holdings);
  holdings_.set_capacity(holdings);
  forms_.set_capacity(holdings_.capacity());
  if (pool_->shape().streams.dim > 0) lenders_.resize(static_cast<size_t>(texts_.capacity()), kNoHolding);
  if (states_ != nullptr) states_->snapshots.set_capacity(holdings_.capacity());
  const auto capacity = static_cast<size_t>(holdings_.capacity());
  if (windows_ != nullptr) {
    windows_->parts.set_capacity(holdings_.capacity());
    windows_->more.resize(capacity * static_cast<size_t>(std::max(0, tables_.full - 1)), kNoBlock);
  }
  if (spilling_ != nullptr || telling_ != nullptr) names_.resize(capacity);
  if (telling_ != nullptr) {
    telling_->told.resize(capacity);
    telling_->path.reserve(capacity);
  }
  if (spilling_ != nullptr) {
    spilling_->waits.resize(capacity);
    spilling_->released.reserve(capacity);
  }
  if (resting_ == nullptr) return;
  resting_->arena.set_capacity(blocks, holdings_.capacity() * (lenders_.empty() ? 1 : 2));
  resting_->anchors.resize(static_cast<size_t>(texts_.capacity()), kNoHolding);
}

void KvCache::used_by(int32_t holding, const KvAppRef& app) {
  const AppSetId before = holdings_.apps(holding);
  const AppSetId now = apps_.with(before, app != nullptr ? app : apps_.asks(""));
  if (now == before) return;
  apps_.hold(now);
  apps_.let_go(before);
  holdings_.set_apps(holding, now);
}

KvSummary KvCache::summary() const {
  KvSummary summary{.texts = texts_.size(), .held = {}};
  std::unordered_map<const std::string*, size_t> places;
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    if (!holdings_.contains(holding)) continue;
    const KvIdentity& identity = holdings_.identity(holding);
    const auto [place, is_new] = places.try_emplace(identity.get(), summary.held.size());
    if (is_new) summary.held.push_back({.identity = identity});
    KvHeld& held = summary.held[place->second];
    ++held.blocks;
    if (holdings_.pins(holding) > 0) ++held.leased;
    if (texts_.holders(holdings_.text(holding)) == 1) ++held.alone;
    held.times_found += holdings_.times_found(holding);
    const HoldingForm& form = forms_.at(holding);
    held.pool_blocks += blocks_of(holding);
    if (blocks_of(holding) > 0) ++held.raw;
    if (forms_.coded(holding)) {
      ++(form.anchor == kNoHolding ? held.alone_coded : held.deltas);
      held.coded_bytes += resting_->arena.size(form.blob);
      if (form.stream_blob != kNoBlob) held.coded_bytes += resting_->arena.size(form.stream_blob);
    }
    if (form_of(holding) == Form::kHollow || is_only_way(holding)) ++held.nowhere;
  }
  std::stable_sort(summary.held.begin(), summary.held.end(),
                   [](const KvHeld& a, const KvHeld& b) { return a.blocks > b.blocks; });
  return summary;
}

void KvCache::release(KvLease& lease) {
  const int64_t now_ns = clock_.now_ns();
  for (int32_t index = lease.places() - 1; index >= 0; --index) {
    release_place(lease, index, now_ns);
    if (index >= lease.shared()) continue;
    const int32_t holding = lease.holdings_[static_cast<size_t>(index)];
    holdings_.unpin(holding, list_of(holding), now_ns);
    if (holdings_.pins(holding) > 0) continue;
    const bool goes = apps_.all_killed(holdings_.apps(holding)) || form_of(holding) == Form::kHollow ||
                      (is_only_way(holding) && holdings_.is_leaf(holding));
    if (goes && may_go(holding)) {
      remove(holding);
    } else if (spilling_ != nullptr) {
      note_released(holding);
    }
  }
  lease.blocks_.clear();
  lease.holdings_.clear();
  lease.window_first_ = 0;
  lease.state_.release();
  lease.state_at_ = kNoState;
  lease.keep_at_ = kKeepNowhere;
}

void KvCache::check(std::span<const KvLease* const> leases) const {
  pool_->check();
  texts_.check();
  holdings_.check();
  apps_.check();
  check_forms();
  check_told();
  // Each block: how many leases have it to themselves, and how many holdings are in it.
  std::vector<int32_t> owners(static_cast<size_t>(total()), 0), held(static_cast<size_t>(total()), 0);
  std::vector<int32_t> pins(static_cast<size_t>(holdings_.capacity()), 0);
  for (const KvLease* lease : leases) {
    if (lease->cache_ == nullptr) continue;
    CHECK(lease->cache_ == this && lease->shared() <= lease->places());
    int32_t parent = kNoHolding;
    for (size_t index = 0; windows_ == nullptr && index < lease->blocks_.size(); ++index) {
      if (index >= lease->holdings_.size()) ++owners[static_cast<size_t>(lease->blocks_[index])];
    }
    for (size_t index = 0; index < lease->holdings_.size(); ++index) {
      const int32_t holding = lease->holdings_[index];
      CHECK(holdings_.contains(holding));
      CHECK(windows_ != nullptr || holdings_.block(holding) == lease->blocks_[index]);
      CHECK(holdings_.parent(holding) == parent);
      parent = holding;
      ++pins[static_cast<size_t>(holding)];
    }
  }
  if (windows_ != nullptr) check_window(leases, owners, held);
  if (states_ != nullptr) check_states(leases);
  if (resting_ != nullptr) {
    for (const int32_t page : resting_->arena.blocks()) ++held[static_cast<size_t>(page)];
  }
  std::vector<int32_t> holders(static_cast<size_t>(texts_.capacity()), 0);
  std::vector<int32_t> of_apps(static_cast<size_t>(apps_.sets_end()), 0);
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    CHECK((holdings_.contains(holding) ? holdings_.pins(holding) : 0) == pins[static_cast<size_t>(holding)]);
    if (!holdings_.contains(holding)) continue;
    if (holdings_.block(holding) != kNoBlock) ++held[static_cast<size_t>(holdings_.block(holding))];
    ++holders[static_cast<size_t>(holdings_.text(holding))];
    ++of_apps[static_cast<size_t>(holdings_.apps(holding))];
    const int32_t parent = holdings_.parent(holding);
    CHECK(texts_.parent(holdings_.text(holding)) == (parent == kNoHolding ? kNoText : holdings_.text(parent)));
  }
  for (size_t text = 0; text < lenders_.size(); ++text) {
    const int32_t holding = lenders_[text];
    CHECK(holding == kNoHolding || (holdings_.contains(holding) && has_streams(holding) &&
                                    holdings_.text(holding) == static_cast<int32_t>(text)));
  }
  for (int32_t text = 0; text < texts_.capacity(); ++text)
    CHECK(texts_.holders(text) == holders[static_cast<size_t>(text)]);
  for (AppSetId set = 0; set < apps_.sets_end(); ++set)
    CHECK(apps_.holders(set) == of_apps[static_cast<size_t>(set)] + (set == KvApps::kNobodyNamed ? 1 : 0));
  for (int32_t block = 0; block < total(); ++block) {
    const auto index = static_cast<size_t>(block);
    CHECK(owners[index] + held[index] == (pool_->is_taken(block) ? 1 : 0));
  }
}

}  // namespace loralei
