// SPDX-License-Identifier: Apache-2.0
// What of a KV cache is written to disk, and how it comes back.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace loralei {

void KvCache::spill_to(KvDisk& disk) {
  CHECK(holdings_.size() == 0 && spilling_ == nullptr && windows_ == nullptr && states_ == nullptr &&
        pool_->view().base != nullptr);
  spilling_ = std::make_unique<Spilling>();
  spilling_->disk = &disk;
  spilling_->blob.resize(static_cast<size_t>(pool_->block_bytes()));
  set_capacity(total());
}

std::vector<KvDiskKey> KvCache::disk_keys(const KvKey& key, std::span<const TokenId> tokens, int32_t limit) const {
  std::vector<KvDiskKey> keys(static_cast<size_t>(std::max(0, limit) / kKvBlockTokens));
  KvDiskKey before{};
  for (size_t block = 0; block < keys.size(); ++block) {
    const auto number = static_cast<int32_t>(block);
    before = keys[block] = kv_disk_key(before, *key.of_block(number), kv_block_tokens(tokens, number));
  }
  return keys;
}

void KvCache::note_released(int32_t holding) {
  Spilling& spilling = *spilling_;
  if (spilling.waits[static_cast<size_t>(holding)]) return;
  spilling.waits[static_cast<size_t>(holding)] = true;
  spilling.released.push_back(holding);
}

// A path is released deepest first, and its beginning is of use without the rest: so who
// was released last is written first.
KvCache::Spill KvCache::spill() {
  constexpr int kAtOnce = 4;
  if (spilling_ == nullptr || spilling_->released.empty()) return Spill::kNothing;
  Spilling& spilling = *spilling_;
  if (spilling.disk->learns_grid()) return Spill::kFull;  // as blobs it takes less, in a moment
  for (int written = 0; written < kAtOnce && !spilling.released.empty(); ++written) {
    const int32_t holding = spilling.released.back();
    const bool there = holdings_.contains(holding) && holdings_.pins(holding) == 0;
    if (there && !write_out(holding)) return Spill::kFull;
    spilling.waits[static_cast<size_t>(holding)] = false;
    spilling.released.pop_back();
  }
  return Spill::kSome;
}

// Encoded where it is, and the disk has a use for that; else as it lies in its block, and
// so do differences by the paper's bounds: there is no form for them. False: the disk
// takes no more now.
bool KvCache::write_out(int32_t holding) {
  const bool paper = is_paper() && forms_.at(holding).anchor != kNoHolding;
  return forms_.coded(holding) && spilling_->disk->grid() != 0 && !paper ? write_blob(holding) : write_raw(holding);
}

bool KvCache::write_raw(int32_t holding) {
  if (holdings_.block(holding) == kNoBlock) return true;
  const KvDiskRecord record{.key = names_[static_cast<size_t>(holding)],
                            .form = KvDiskForm::kRaw,
                            .exact = is_exact(holding),
                            .streams = forms_.at(holding).streams,
                            .grid = 0,
                            .anchor = {}};
  const std::byte* const bytes = pool_->view().slice(holdings_.block(holding), 0, 0);
  return spilling_->disk->put(record, {bytes, static_cast<size_t>(pool_->block_bytes())});
}

bool KvCache::write_blob(int32_t holding) {
  const HoldingForm& form = forms_.at(holding);
  const bool is_delta = form.anchor != kNoHolding;
  KvDisk& disk = *spilling_->disk;
  KvDiskRecord record{.key = names_[static_cast<size_t>(holding)],
                      .form = is_delta ? KvDiskForm::kDelta : KvDiskForm::kAlone,
                      .exact = form.blob_exact && resting_->lossless,
                      .streams = false,
                      .grid = disk.grid(),
                      .anchor = {}};
  if (!disk.wants(record)) return true;
  if (is_delta) {
    record.anchor = names_[static_cast<size_t>(form.anchor)];
    if (!write_blob(form.anchor)) return false;
    if (!disk.can_be_anchor(record.anchor)) return write_raw(holding);  // that lies there as it is
  }
  const std::span<std::byte> bytes =
      std::span(spilling_->blob).first(static_cast<size_t>(resting_->arena.size(form.blob)));
  resting_->arena.load(form.blob, bytes);
  return disk.put(record, bytes);
}

bool KvCache::fill(int32_t block, const KvFetchedBlock& fetched) {
  if (fetched.record.form == KvDiskForm::kRaw) {
    if (std::ssize(fetched.payload) != pool_->block_bytes()) return false;
    std::memcpy(pool_->view().slice(block, 0, 0), fetched.payload.data(), fetched.payload.size());
    return true;
  }
  if (resting_ == nullptr || !resting_->options.grid) return false;
  make_coder();
  KvDecodeJob job{.from = {.delta = fetched.record.form == KvDiskForm::kDelta,
                           .bytes = fetched.payload,
                           .anchor_bytes = fetched.anchor_payload},
                  .block = block};
  resting_->coder->decode(std::span(&job, 1));
  return job.ok;
}

int32_t KvCache::restore(const KvKey& key, std::span<const TokenId> tokens, std::span<const KvDiskKey> keys,
                         int32_t first, std::span<const KvFetchedBlock> blocks) {
  CHECK(spilling_ != nullptr && first + blocks.size() <= keys.size());
  const int32_t there = peek(key, tokens, first * kKvBlockTokens).blocks;
  if (there < first) return 0;  // what is before them has gone
  const int32_t most = std::min(static_cast<int32_t>(blocks.size()), available());
  KvLease lease = lease_prefix(key, tokens, first, first + most, false);
  int32_t restored = 0;
  for (; restored < most; ++restored) {
    const int32_t block = first + restored;
    const KvFetchedBlock& fetched = blocks[static_cast<size_t>(restored)];
    if (fetched.record.key != keys[static_cast<size_t>(block)] || !reserve(lease, (block + 1) * kKvBlockTokens)) break;
    const int32_t filled = lease.blocks_.back();
    if (!fill(filled, fetched)) {
      spilling_->disk->drop(fetched.record.key);
      break;
    }
    lease.exact_ = lease.exact_ && fetched.record.exact;
    publish(lease, key, tokens, (block + 1) * kKvBlockTokens);
    if (lease.shared() <= block) break;
    if (!fetched.record.streams) lose_streams(lease.holdings_.back());
    if (!fetched.record.exact && lease.blocks_[static_cast<size_t>(block)] == filled)
      note_decoded(lease.holdings_.back());
  }
  spilling_->restored_blocks += restored;
  return restored;
}

}  // namespace loralei
