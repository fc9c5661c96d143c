// SPDX-License-Identifier: Apache-2.0
// What adapters read of the base's lower layers instead of computing it.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace loralei {

// It has the block still in which it was computed, or a copy of that as far as it lends.
bool KvCache::lends(int32_t holding, const KvIdentity& to, int32_t layers) const {
  const KvIdentity& identity = holdings_.identity(holding);
  return forms_.at(holding).streams && holdings_.block(holding) != kNoBlock &&
         identity_base_layers(identity) >= layers && identity_salt(identity) == identity_salt(to);
}

int32_t KvCache::lender(const KvIdentity& identity, int32_t text, int32_t layers) const {
  const int32_t most = lenders_[static_cast<size_t>(text)];
  return most != kNoHolding && lends(most, identity, layers) ? most : kNoHolding;
}

void KvCache::note_lender(int32_t holding) {
  if (lenders_.empty()) return;
  int32_t& most = lenders_[static_cast<size_t>(holdings_.text(holding))];
  const int32_t layers = identity_base_layers(holdings_.identity(holding));
  if (layers > 0 && (most == kNoHolding || identity_base_layers(holdings_.identity(most)) <= layers)) most = holding;
}

void KvCache::forget_lender(int32_t holding) {
  forms_.at(holding).streams = false;
  if (lenders_.empty()) return;
  int32_t& most = lenders_[static_cast<size_t>(holdings_.text(holding))];
  if (most == holding) most = kNoHolding;
}

int32_t KvCache::lent(const KvKey& key, std::span<const TokenId> tokens, int32_t limit, int32_t first,
                      int32_t layers) const {
  if (lenders_.empty() || layers < 1) return 0;
  const int32_t blocks_most = std::min<int32_t>(limit, static_cast<int32_t>(tokens.size())) / kKvBlockTokens;
  int32_t text = kNoText, block = 0;
  for (; block < blocks_most; ++block) {
    text = texts_.find(text, kv_block_tokens(tokens, block));
    if (text == kNoText || (block >= first && lender(key.of_block(block), text, layers) == kNoHolding)) break;
  }
  return std::max(0, block - first);
}

int32_t KvCache::borrow(KvLease& lease, const KvKey& key, std::span<const TokenId> tokens, int32_t blocks,
                        int32_t layers) {
  CHECK(lease.cache_ == this && !lenders_.empty() && layers > 0);
  const int32_t first = static_cast<int32_t>(lease.blocks_.size());
  // Room before anything is read: what is evicted for it may be what was to be lent. So
  // that goes last.
  int32_t text = kNoText, before = kNoHolding;
  for (int32_t block = 0; block < blocks; ++block) {
    text = texts_.find(text, kv_block_tokens(tokens, block));
    if (text == kNoText) break;
    const int32_t from = block < first ? kNoHolding : lender(key.of_block(block), text, layers);
    if (before != kNoHolding && (from == kNoHolding || holdings_.parent(from) != before)) holdings_.touch(before);
    before = from;
  }
  if (before != kNoHolding) holdings_.touch(before);
  if (!reserve(lease, blocks * kKvBlockTokens)) return first;
  const KvView view = pool_->view();
  const KvStreams& streams = pool_->streams();
  text = kNoText;
  int32_t block = 0;
  for (; block < blocks; ++block) {
    text = texts_.find(text, kv_block_tokens(tokens, block));
    if (text == kNoText) break;
    if (block < first) continue;
    const int32_t from = lender(key.of_block(block), text, layers);
    if (from == kNoHolding) break;
    const int32_t source = holdings_.block(from), own = lease.blocks_[static_cast<size_t>(block)];
    std::memcpy(view.slice(own, 0, 0), view.slice(source, 0, 0), static_cast<size_t>(layers * view.layer_stride_bytes));
    int32_t levels = 0;
    while (levels < streams.shape.levels && streams.shape.layers[static_cast<size_t>(levels)] <= layers) ++levels;
    std::memcpy(streams.rows(own, 0), streams.rows(source, 0),
                static_cast<size_t>(streams.rows(own, levels) - streams.rows(own, 0)) * sizeof(uint16_t));
    lease.exact_ = lease.exact_ && is_exact(from);
  }
  for (int32_t unused = std::max(block, first); unused < blocks; ++unused) {
    pool_->give_back(lease.blocks_.back());
    lease.blocks_.pop_back();
  }
  return static_cast<int32_t>(lease.blocks_.size());
}

}  // namespace loralei
