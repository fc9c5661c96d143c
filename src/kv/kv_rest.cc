// SPDX-License-Identifier: Apache-2.0
// The forms of what a KV cache holds: encoded while nobody leases it, decoded on a hit.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "codec/kv_spread.h"
#include "kv/kv_cache.h"

namespace loralei {
namespace {

// More deltas than these are dropped with their anchor instead of being told anew.
constexpr int32_t kRecodedMost = 4;
// Tokens from which steps are found where none were given: at least, and at most.
constexpr int32_t kSpreadTokensLeast = 64, kSpreadTokens = 512;

}  // namespace

Status KvCache::rest_by(KvRestOptions options) {
  CHECK(holdings_.size() == 0 && resting_ == nullptr && options.ledger != nullptr);
  const bool paper = options.delta == KvDelta::kPaper;
  if (options.sharing == KvSharing::kExact && paper)
    return Error{
        ErrorCode::kInvalidArgument,
        "--kv-delta paper says how prefixes are encoded, and --kv-sharing exact encodes none; add --kv-sharing "
        "bounded, or leave --kv-delta out"};
  if (options.sharing == KvSharing::kExact || !prefix_cache_) return {};
  if (states_ != nullptr)
    return Error{ErrorCode::kInvalidArgument,
                 "prefixes of a model whose layers keep states of whole texts are not encoded; use --kv-sharing exact"};
  if (windows_ != nullptr)
    return Error{ErrorCode::kInvalidArgument,
                 "blocks of layers that attend to a window are not encoded; use --kv-sharing exact"};
  const KvView view = pool_->view();
  if (view.base == nullptr)
    return Error{ErrorCode::kInvalidArgument, "KV in the memory of a device cannot be encoded; use --kv-sharing exact"};
  const bool lossless = has_vector_scale(view.dtype);
  if (options.sharing == KvSharing::kLossless && !lossless)
    return Error{ErrorCode::kInvalidArgument,
                 "--kv-sharing lossless needs --kv-cache-dtype int8 or fp8; a float cache is encoded by bounded"};
  if (lossless && paper)
    return Error{ErrorCode::kInvalidArgument,
                 "--kv-delta paper is for a float cache: the paper tells int8 and fp8 caches as --kv-delta steps does; "
                 "leave it out, or choose --kv-cache-dtype f32, f16 or bf16"};
  const KvGridShape shape = kv_grid_shape(pool_->shape());
  if (lossless) {
    TRY_ASSIGN(options.grid, KvGrid::create(shape, {}));
  }
  const int64_t stream_bytes = pool_->shape().streams.block_bytes();
  const int threads = options.pool == nullptr ? 1 : options.pool->threads();
  const int64_t scratch_bytes = KvCoder::scratch_bytes(shape, options.delta, threads) + stream_bytes;
  auto scratch = options.ledger->try_grant(MemoryUse::kScratch, scratch_bytes);
  if (!scratch)
    return Error{ErrorCode::kTooLarge, "encoding KV takes " + format_bytes(scratch_bytes) +
                                           " to work in, which the memory budget does not have; give it more or use "
                                           "--kv-sharing exact"};
  resting_ = std::unique_ptr<Resting>(new Resting{.arena = BlobArena(view.base, pool_->block_bytes()),
                                                  .options = std::move(options),
                                                  .shape = shape,
                                                  .lossless = lossless,
                                                  .scratch = std::move(*scratch),
                                                  .coder = {},
                                                  .anchors = {},
                                                  .encodes = {},
                                                  .encoding = {},
                                                  .encoding_on = {},
                                                  .decodes = {},
                                                  .decoding = {},
                                                  .streams = {},
                                                  .times = {}});
  resting_->streams.resize(static_cast<size_t>(stream_bytes));
  set_capacity(total());
  resting_->arena.set_capacity(std::max(total(), capacity()), 0);
  return {};
}

bool KvCache::is_exact(int32_t holding) const {
  if (windows_ != nullptr) return true;
  const HoldingForm& form = forms_.at(holding);
  return holdings_.block(holding) != kNoBlock ? form.exact
                                              : forms_.coded(holding) && form.blob_exact && resting_->lossless;
}

KvSource KvCache::source_of(int32_t holding) const {
  const HoldingForm& form = forms_.at(holding);
  KvSource source{.block = holdings_.block(holding), .blob = form.blob, .delta = form.anchor != kNoHolding};
  if (source.delta) {
    source.anchor_block = holdings_.block(form.anchor);
    source.anchor_blob = forms_.at(form.anchor).blob;
  }
  return source;
}

int32_t KvCache::released_count(Form form) const {
  int32_t count = 0;
  for (int32_t list = static_cast<int32_t>(form); list < holdings_.groups(); list += kForms)
    count += holdings_.released_count(list);
  return count;
}

// By the paper's bounds nothing is told anew: errors would add up.
int32_t KvCache::recoded_most() const { return is_paper() ? 0 : kRecodedMost; }

// Its block is what a blob said.
void KvCache::note_decoded(int32_t holding) {
  HoldingForm& form = forms_.at(holding);
  form.decoded = is_paper();
  if (!form.decoded || forms_.coded(holding)) return;
  form.plain = true;
  relist(holding);
}

bool KvCache::wants_rest() const {
  if (resting_ == nullptr || holdings_.unpinned_blocks() == 0) return false;
  const int32_t raw = released_count(Form::kRaw);
  return raw >= (resting_->options.grid ? 1 : kSpreadTokensLeast / kKvBlockTokens);
}

bool KvCache::should_rest(int32_t blocks) const {
  return wants_rest() && pool_->free() + released_count(Form::kBoth) < blocks;
}

// To whom this one is told as differences: the base's with the same salt if that is
// encoded, else whoever lies alone on this text. `wait`: the base's is to be encoded
// first.
int32_t KvCache::anchor_for(int32_t holding, bool& wait) {
  const int32_t text = holdings_.text(holding);
  const KvIdentity& own = holdings_.identity(holding);
  const KvIdentity base = identities_.base_of(own);
  if (base == own) return kNoHolding;
  const int32_t of_base = holdings_.find(text, base);
  if (of_base != kNoHolding && forms_.can_be_anchor(of_base)) return of_base;
  wait = of_base != kNoHolding && form_of(of_base) == Form::kRaw && holdings_.pins(of_base) == 0;
  if (wait) return of_base;
  const int32_t other = resting_->anchors[static_cast<size_t>(text)];
  if (other == kNoHolding || other == holding || !forms_.can_be_anchor(other)) return kNoHolding;
  return identities_.base_of(holdings_.identity(other)) == base ? other : kNoHolding;
}

// As many as there are lanes, those first that go first. A text's base before its
// adapters.
void KvCache::choose_encodes() {
  Resting& rest = *resting_;
  rest.encodes.clear();
  rest.encoding.clear();
  rest.encoding_on.clear();
  const auto chosen = [&](int32_t holding) {
    return std::find(rest.encoding.begin(), rest.encoding.end(), holding) != rest.encoding.end();
  };
  const KvWorth worth = eviction_ == KvEviction::kDensity ? worth_() : KvWorth{};
  const int64_t now_ns = clock_.now_ns();
  const std::span<int32_t> next = firsts({Form::kRaw});
  while (std::ssize(rest.encodes) < rest.coder->lanes()) {
    const size_t goes = goes_first(next, worth, now_ns, false);
    if (goes == next.size()) return;
    int32_t holding = std::exchange(next[goes], holdings_.released_next(next[goes]));
    bool wait = false;
    int32_t anchor = anchor_for(holding, wait);
    if (wait) holding = std::exchange(anchor, kNoHolding);
    if (chosen(holding)) continue;
    rest.encoding.push_back(holding);
    rest.encoding_on.push_back(anchor);
    KvEncodeJob& job = rest.encodes.emplace_back();
    job.from = source_of(holding);
    job.delta = anchor != kNoHolding;
    if (job.delta) job.anchor = source_of(anchor);
  }
}

// Where no steps were given: from the blocks that are to be encoded.
bool KvCache::find_grid() {
  Resting& rest = *resting_;
  if (rest.options.grid) return true;
  KvSpread spread(rest.shape);
  for (int32_t list = static_cast<int32_t>(Form::kRaw); list < holdings_.groups(); list += kForms) {
    for (int32_t one = holdings_.released_first(list); one != kNoHolding && spread.tokens() < kSpreadTokens;
         one = holdings_.released_next(one))
      spread.add(pool_->view(), holdings_.block(one));
  }
  Result<KvGrid> grid = kv_steps_from(rest.shape, spread.spread());
  if (grid.ok()) rest.options.grid = std::move(*grid);
  return grid.ok();
}

void KvCache::make_coder() {
  Resting& rest = *resting_;
  if (!rest.coder)
    rest.coder.emplace(*rest.options.grid, rest.options.delta, pool_->view(), rest.arena, rest.options.pool);
}

int32_t KvCache::rest() {
  if (!wants_rest() || !find_grid()) return 0;
  Resting& rest = *resting_;
  make_coder();
  const int64_t begin_ns = clock_.now_ns();
  choose_encodes();
  rest.coder->encode(rest.encodes);
  for (size_t i = 0; i < rest.encodes.size(); ++i)
    finish_encode(rest.encoding[i], rest.encodes[i].delta ? rest.encoding_on[i] : kNoHolding, rest.encodes[i].blob);
  rest.times.encode_ns += clock_.now_ns() - begin_ns;
  return static_cast<int32_t>(rest.encodes.size());
}

void KvCache::finish_encode(int32_t holding, int32_t anchor, std::span<const std::byte> blob) {
  constexpr int64_t kPaysPart = 32;  // it is to take less than all but this part of a block
  const std::span<const std::byte> streams = streams_to_keep(holding);
  const int64_t bytes = std::ssize(blob);
  if (bytes == 0 || bytes + std::ssize(streams) > pool_->block_bytes() - pool_->block_bytes() / kPaysPart) {
    forms_.at(holding).plain = true;
    return relist(holding);
  }
  // Another of this round may have taken what it was told from.
  if (anchor != kNoHolding && !forms_.can_be_anchor(anchor)) return;
  const BlobArena& arena = resting_->arena;
  const bool lends = forms_.at(holding).streams && is_lender(holding);
  if (!make_chunks(holding, arena.chunks_for(bytes) + arena.chunks_for(std::ssize(streams)))) return;
  keep_blob(holding, anchor, blob);
  ++resting_->times.encoded_blocks;
  if (lends) keep_streams(holding, streams);
}

// Of one that lends; a copy, since its block may become a page before.
std::span<const std::byte> KvCache::streams_to_keep(int32_t holding) {
  if (!is_lender(holding) || !forms_.at(holding).streams) return {};
  const KvStreams& streams = pool_->streams();
  const auto bytes = static_cast<size_t>(streams.shape.bytes_to(identity_base_layers(holdings_.identity(holding))));
  std::memcpy(resting_->streams.data(), streams.rows(holdings_.block(holding), 0), bytes);
  return std::span(resting_->streams).first(bytes);
}

void KvCache::keep_streams(int32_t holding, std::span<const std::byte> streams) {
  HoldingForm& form = forms_.at(holding);
  form.blob_streams = true;
  if (!streams.empty()) {
    const int32_t blob = resting_->arena.store(streams, holding);
    CHECK(blob != kNoBlob);
    forms_.keep_streams(holding, blob);
  }
  note_lender(holding);
}

// For one that has a block: in the last resort that becomes a page, of which one has more
// chunks than it wants.
bool KvCache::make_chunks(int32_t holding, int32_t chunks) {
  BlobArena& arena = resting_->arena;
  while (chunks > arena.free_chunks()) {
    if (const auto block = pool_->take()) {
      arena.add_page(*block);
      continue;
    }
    const int32_t other = first_of({Form::kBoth}, false);
    if (other != kNoHolding) {
      drop_block(other);
      continue;
    }
    const int32_t block = holdings_.block(holding);
    if (block == kNoBlock || holdings_.pins(holding) > 0) return false;
    holdings_.set_block(holding, kNoBlock);
    lose_streams(holding);
    arena.add_page(block);
  }
  return true;
}

void KvCache::keep_blob(int32_t holding, int32_t anchor, std::span<const std::byte> blob) {
  HoldingForm& form = forms_.at(holding);
  form.blob = resting_->arena.store(blob, holding);
  CHECK(form.blob != kNoBlob);
  form.blob_exact = form.exact;
  if (anchor != kNoHolding) {
    forms_.link(holding, anchor);
    return relist(holding);
  }
  relist(holding);
  int32_t& of_text = resting_->anchors[static_cast<size_t>(holdings_.text(holding))];
  const int32_t before = of_text;
  if (before != kNoHolding && identity_adapters(holdings_.identity(holding)) > 0) return;
  of_text = holding;
  if (before != kNoHolding && before != holding) follow_base(holding, before);
}

// The base's has come to where others are told from `before`: from now on from it, where
// that takes less.
void KvCache::follow_base(int32_t base, int32_t before) {
  if (is_paper() || !forms_.can_be_anchor(before) || forms_.at(before).dependants > kRecodedMost) return;
  if (identities_.base_of(holdings_.identity(before)) != holdings_.identity(base)) return;
  for (int32_t one = forms_.at(before).first_dependant; one != kNoHolding;) {
    const int32_t next = forms_.at(one).next;
    recode(one, base);
    one = next;
  }
  if (forms_.at(before).dependants == 0) recode(before, base);
}

// Its blob told from another anchor, or from none (kNoHolding). False: it did not become
// smaller, or found no room; nothing has changed.
bool KvCache::recode(int32_t holding, int32_t anchor) {
  Resting& rest = *resting_;
  KvEncodeJob job{.from = source_of(holding), .delta = anchor != kNoHolding, .anchor = {}, .blob = {}};
  if (job.delta) job.anchor = source_of(anchor);
  rest.coder->encode(std::span(&job, 1));
  HoldingForm& form = forms_.at(holding);
  const int64_t bytes = std::ssize(job.blob), now = rest.arena.size(form.blob);
  if (bytes == 0 || (job.delta && bytes >= now)) return false;
  if (rest.arena.chunks_for(bytes) > rest.arena.free_chunks() + rest.arena.chunks_for(now)) {
    const auto block = pool_->take();
    if (!block) return false;
    rest.arena.add_page(*block);
    if (rest.arena.chunks_for(bytes) > rest.arena.free_chunks() + rest.arena.chunks_for(now)) return false;
  }
  const bool exact = form.blob_exact;
  forms_.unlink(holding);
  rest.arena.drop(form.blob);
  form.blob = rest.arena.store(job.blob, holding);
  CHECK(form.blob != kNoBlob);
  form.blob_exact = exact;
  if (job.delta) forms_.link(holding, anchor);
  ++rest.times.recoded_blocks;
  return true;
}

// Nothing is held behind it; and if others are deltas to it, these are few, and none is
// about to be decoded.
bool KvCache::may_go(int32_t holding) const {
  const HoldingForm& form = forms_.at(holding);
  if (!holdings_.is_leaf(holding) || form.dependants > recoded_most()) return false;
  for (int32_t one = form.first_dependant; one != kNoHolding; one = forms_.at(one).next) {
    if (holdings_.block(one) == kNoBlock && holdings_.pins(one) > 0) return false;
  }
  return true;
}

// Of the many that are deltas to it and would be lost with it, the one released first;
// kNoHolding: they are few, or lie in blocks.
int32_t KvCache::first_that_needs(int32_t anchor) const {
  int32_t first = kNoHolding;
  if (forms_.at(anchor).dependants <= recoded_most()) return first;
  for (int32_t one = forms_.at(anchor).first_dependant; one != kNoHolding; one = forms_.at(one).next) {
    if (holdings_.block(one) != kNoBlock || holdings_.pins(one) > 0) continue;
    if (first == kNoHolding || holdings_.release_order(one) < holdings_.release_order(first)) first = one;
  }
  return first;
}

// Nobody is a delta to it any more: the smallest of them stands alone and the others are
// told from that; or, where these are many or there is no room, they lose their blobs.
void KvCache::free_dependants(int32_t anchor) {
  const HoldingForm& form = forms_.at(anchor);
  if (form.dependants == 0) return;
  if (form.dependants <= recoded_most()) {
    int32_t least = form.first_dependant;
    for (int32_t one = least; one != kNoHolding; one = forms_.at(one).next) {
      if (resting_->arena.size(forms_.at(one).blob) < resting_->arena.size(forms_.at(least).blob)) least = one;
    }
    if (recode(least, kNoHolding)) {
      resting_->anchors[static_cast<size_t>(holdings_.text(anchor))] = least;
      for (int32_t one = form.first_dependant; one != kNoHolding;) {
        const int32_t next = forms_.at(one).next;
        if (!recode(one, least) && !recode(one, kNoHolding)) drop_blob(one);
        one = next;
      }
    }
  }
  while (form.dependants > 0) drop_blob(form.first_dependant);
}

void KvCache::use_soon(const KvKey& key, std::span<const TokenId> tokens, int32_t limit) {
  const int32_t blocks = peek(key, tokens, limit).blocks;
  int32_t text = kNoText, last = kNoHolding, anchor = kNoHolding;
  for (int32_t block = 0; block < blocks; ++block) {
    last = find(key, tokens, block, text);
    if (forms_.at(last).anchor != kNoHolding) anchor = forms_.at(last).anchor;
  }
  if (last != kNoHolding) holdings_.touch(last);
  if (anchor != kNoHolding) holdings_.touch(anchor);
}

void KvCache::drop_block(int32_t holding) {
  CHECK(holdings_.pins(holding) == 0);
  pool_->give_back(holdings_.block(holding));
  holdings_.set_block(holding, kNoBlock);
  lose_streams(holding);
  relist(holding);
  tell_of(holding);
}

// What is left of it is its block, or nothing.
void KvCache::clear_blob(int32_t holding) {
  free_dependants(holding);
  HoldingForm& form = forms_.at(holding);
  forms_.unlink(holding);
  resting_->arena.drop(std::exchange(form.blob, kNoBlob));
  form.blob_exact = false;
  drop_streams(holding);
  form.plain = form.plain || (form.decoded && holdings_.block(holding) != kNoBlock);
  int32_t& anchor = resting_->anchors[static_cast<size_t>(holdings_.text(holding))];
  if (anchor == holding) anchor = kNoHolding;
  relist(holding);
}

// Those beside its blob.
void KvCache::drop_streams(int32_t holding) {
  const int32_t blob = forms_.lose_streams(holding);
  if (blob != kNoBlob) resting_->arena.drop(blob);
  forms_.at(holding).blob_streams = false;
  if (!has_streams(holding)) lose_streams(holding);
}

// And where nothing is left, and nothing is held behind it, it goes.
void KvCache::drop_blob(int32_t holding) {
  clear_blob(holding);
  tell_of(holding);
  if (holdings_.pins(holding) == 0 && form_of(holding) == Form::kHollow && may_go(holding)) remove(holding);
}

bool KvCache::materialise(KvLease& lease) {
  if (resting_ == nullptr) return true;
  Resting& rest = *resting_;
  const int64_t begin_ns = clock_.now_ns();
  const auto coded = [this](int32_t holding) { return holdings_.block(holding) == kNoBlock; };
  const auto missing = std::count_if(lease.holdings_.begin(), lease.holdings_.end(), coded);
  if (missing > available()) return false;
  // All blocks before any source: what is evicted for them may have been one.
  rest.decodes.clear();
  for (int64_t i = 0; i < missing; ++i) rest.decodes.push_back({.from = {}, .block = take_block()});
  auto job = rest.decodes.begin();
  for (const int32_t holding : lease.holdings_) {
    if (coded(holding)) (job++)->from = source_of(holding);
  }
  if (missing > 0) {
    rest.coder->decode(rest.decodes);
    rest.times.decode_ns += clock_.now_ns() - begin_ns;
  }
  bool whole = true;
  size_t next = 0;
  for (size_t index = 0; index < lease.holdings_.size(); ++index) {
    const int32_t holding = lease.holdings_[index];
    if (coded(holding)) {
      const KvDecodeJob& done = rest.decodes[next++];
      if (!done.ok) {
        pool_->give_back(done.block);
        drop_blob(holding);
        ++rest.times.damaged_blocks;
        whole = false;
        continue;
      }
      HoldingForm& form = forms_.at(holding);
      form.exact = rest.lossless && form.blob_exact;
      holdings_.set_block(holding, done.block);
      load_streams(holding, done.block);
      form.streams = form.blob_streams;
      note_decoded(holding);
      ++rest.times.decoded_blocks;
    }
    lease.blocks_[index] = holdings_.block(holding);
  }
  return whole;
}

KvCoded KvCache::coded() const {
  if (resting_ == nullptr) return {};
  const BlobArena& arena = resting_->arena;
  return {.sharing = resting_->options.sharing,
          .delta = resting_->options.delta,
          .agreement = resting_->options.agreement,
          .blobs = arena.blobs() - forms_.stream_blobs(),
          .pages = arena.pages(),
          .bytes = arena.stored_bytes(),
          .page_bytes = arena.pages() * pool_->block_bytes(),
          .times = resting_->times};
}

void KvCache::check_forms() const {
  if (resting_ == nullptr) return;
  resting_->arena.check();
  forms_.check(holdings_, resting_->arena);
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    if (!holdings_.contains(holding)) continue;
    const HoldingForm& form = forms_.at(holding);
    // What is told from another lies on the same text under the same salt.
    if (form.anchor != kNoHolding)
      CHECK(identity_salt(holdings_.identity(holding)) == identity_salt(holdings_.identity(form.anchor)));
    // What was decoded is not encoded anew.
    CHECK(!form.decoded || holdings_.block(holding) == kNoBlock || forms_.coded(holding) || form.plain);
    if (holdings_.pins(holding) > 0) continue;
    CHECK(holdings_.group(holding) == list_of(holding));
    CHECK(form_of(holding) != Form::kHollow || !holdings_.is_leaf(holding));
  }
  for (size_t text = 0; text < resting_->anchors.size(); ++text) {
    const int32_t anchor = resting_->anchors[text];
    CHECK(anchor == kNoHolding || (holdings_.contains(anchor) && holdings_.text(anchor) == static_cast<int32_t>(text)));
  }
}

}  // namespace loralei
