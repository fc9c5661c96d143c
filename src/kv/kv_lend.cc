// SPDX-License-Identifier: Apache-2.0
// What adapters read of the base's lower layers instead of computing it.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace loralei {

// It has the streams of the text still; if not in its block, then beside its blob.
bool KvCache::lends(int32_t holding, const KvIdentity& to, int32_t layers) const {
  const KvIdentity& identity = holdings_.identity(holding);
  return has_streams(holding) && identity_base_layers(identity) >= layers &&
         identity_salt(identity) == identity_salt(to);
}

bool KvCache::has_streams(int32_t holding) const {
  const HoldingForm& form = forms_.at(holding);
  return form.blob_streams || (form.streams && holdings_.block(holding) != kNoBlock);
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

// Its block goes, or is another that has no streams; they may lie beside its blob still.
void KvCache::lose_streams(int32_t holding) {
  forms_.at(holding).streams = false;
  if (lenders_.empty() || has_streams(holding)) return;
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
  if (resting_ != nullptr) resting_->decodes.clear(), resting_->decoding.clear();
  text = kNoText;
  int32_t block = 0;
  for (; block < blocks; ++block) {
    text = texts_.find(text, kv_block_tokens(tokens, block));
    if (text == kNoText) break;
    if (block < first) continue;
    const int32_t from = lender(key.of_block(block), text, layers);
    if (from == kNoHolding) break;
    copy_lent(from, lease.blocks_[static_cast<size_t>(block)], layers);
    lease.exact_ = lease.exact_ && is_exact(from);
  }
  block = std::max(block, first);
  if (resting_ != nullptr) block = decode_lent(lease, block);
  for (; block < std::ssize(lease.blocks_);) {
    pool_->give_back(lease.blocks_.back());
    lease.blocks_.pop_back();
  }
  return block;
}

// Of what lies encoded the decoding is noted down alone, so that all threads do that.
void KvCache::copy_lent(int32_t from, int32_t own, int32_t layers) {
  const KvView view = pool_->view();
  const KvStreams& streams = pool_->streams();
  const HoldingForm& form = forms_.at(from);
  const int32_t source = holdings_.block(from);
  if (source == kNoBlock) {
    resting_->decodes.push_back({.from = source_of(from), .block = own});
    resting_->decoding.push_back(from);
  } else {
    std::memcpy(view.slice(own, 0, 0), view.slice(source, 0, 0), static_cast<size_t>(layers * view.layer_stride_bytes));
  }
  if (source != kNoBlock && form.streams) {
    std::memcpy(streams.rows(own, 0), streams.rows(source, 0), static_cast<size_t>(streams.shape.bytes_to(layers)));
  } else {
    load_streams(from, own);
  }
}

void KvCache::load_streams(int32_t holding, int32_t block) {
  const int32_t blob = forms_.at(holding).stream_blob;
  if (blob == kNoBlob) return;
  auto* const rows = reinterpret_cast<std::byte*>(pool_->streams().rows(block, 0));
  resting_->arena.load(blob, {rows, static_cast<size_t>(resting_->arena.size(blob))});
}

// How many blocks the lease has with what was noted down: up to the first that is
// damaged, which is dropped.
int32_t KvCache::decode_lent(const KvLease& lease, int32_t blocks) {
  Resting& rest = *resting_;
  if (rest.decodes.empty()) return blocks;
  const int64_t begin_ns = clock_.now_ns();
  rest.coder->decode(rest.decodes);
  rest.times.decode_ns += clock_.now_ns() - begin_ns;
  for (size_t i = 0; i < rest.decodes.size(); ++i) {
    if (rest.decodes[i].ok) {
      ++rest.times.decoded_blocks;
      continue;
    }
    ++rest.times.damaged_blocks;
    const auto place = std::find(lease.blocks_.begin(), lease.blocks_.end(), rest.decodes[i].block);
    blocks = std::min(blocks, static_cast<int32_t>(place - lease.blocks_.begin()));
    if (forms_.coded(rest.decoding[i])) drop_blob(rest.decoding[i]);
  }
  return blocks;
}

}  // namespace loralei
