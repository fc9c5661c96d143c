// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "base/units.h"
#include "codec/kv_blob.h"
#include "codec/kv_spread.h"

namespace loralei {
namespace {

constexpr size_t kOwnLast = 3;  // tokens of a prompt that are always computed
constexpr size_t kPrefixPart = 3, kPrefixOf = 4;
constexpr int64_t kScratchSteps = 2;        // whose rows pieces have together, where there is room
constexpr int64_t kEntropyBlocks = 256;     // that are looked at, at even distances
constexpr int32_t kCountedFarthest = 4096;  // integers farther than that count as this one
constexpr size_t kCounted = 2 * kCountedFarthest;

// Of integers counted by value.
double entropy(std::span<const uint32_t> counts) {
  double all = 0, bits = 0;
  for (const uint32_t count : counts) all += count;
  for (const uint32_t count : counts)
    if (count > 0) bits -= count / all * std::log2(count / all);
  return all > 0 ? bits : 0;
}

}  // namespace

size_t kv_shared_tokens(size_t prompt_tokens) {
  return prompt_tokens < kOwnLast ? 0 : (prompt_tokens - kOwnLast) / kKvBlockTokens * kKvBlockTokens;
}

namespace {

void add_pieces(const KvDocument& document, std::span<const TokenId> begin, size_t longest,
                std::vector<KvTextPiece>& to) {
  if (document.prompt > 0) {
    const size_t prefix = kv_shared_tokens(document.prompt);
    if (prefix > 0 && document.tokens.size() <= longest)
      to.push_back({document.tokens, prefix, document.prompt - 1, document.identity, true});
    return;
  }
  const size_t own = std::min(longest, kKvPieceTokens) - begin.size();
  for (size_t from = 0; from < document.tokens.size(); from += own) {
    const auto part = std::span(document.tokens).subspan(from, std::min(own, document.tokens.size() - from));
    const size_t length = begin.size() + part.size();
    if (length < kKvPieceLeast) continue;
    const size_t prefix = length * kPrefixPart / kPrefixOf / kKvBlockTokens * kKvBlockTokens;
    KvTextPiece& piece = to.emplace_back(KvTextPiece{{begin.begin(), begin.end()}, prefix, prefix, document.identity});
    piece.tokens.insert(piece.tokens.end(), part.begin(), part.end());
  }
}

// So many of them, at even distances.
void thin_out(std::vector<KvTextPiece>& pieces, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (const size_t from = i * pieces.size() / count; from != i) pieces[i] = std::move(pieces[from]);
  pieces.resize(count);
}

int64_t tokens_of(std::span<const KvTextPiece> pieces) {
  int64_t tokens = 0;
  for (const KvTextPiece& piece : pieces) tokens += static_cast<int64_t>(piece.tokens.size());
  return tokens;
}

int32_t blocks_of(size_t tokens) { return static_cast<int32_t>((tokens + kKvBlockTokens - 1) / kKvBlockTokens); }

std::vector<int32_t> table_from(int32_t first, int32_t blocks) {
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), first);
  return table;
}

}  // namespace

Result<std::vector<KvTextPiece>> cut_kv_pieces(std::span<const KvDocument> documents, std::span<const TokenId> begin,
                                               int64_t tokens, int64_t max_model_len) {
  std::vector<KvTextPiece> pieces;
  const auto longest = static_cast<size_t>(std::max<int64_t>(max_model_len, 0));
  if (begin.size() < kKvPieceLeast && longest >= kKvPieceLeast)
    for (const KvDocument& document : documents) add_pieces(document, begin, longest, pieces);
  if (pieces.empty()) {
    return invalid_argument(
        "The text has nothing long enough to compare: a piece of " + std::to_string(kKvPieceLeast) +
        " tokens, or a prompt of " + std::to_string(kKvBlockTokens + kOwnLast) +
        " that fits --max-model-len with its answer. Some thousands of tokens make the figures sure.");
  }
  const auto all = tokens_of(pieces);
  if (all > tokens)
    thin_out(pieces, std::max<size_t>(1, static_cast<size_t>(static_cast<double>(tokens) / static_cast<double>(all) *
                                                             static_cast<double>(pieces.size()))));
  return pieces;
}

KvGridShape KvTrial::shape() const {
  const ModelConfig& config = host_.file().config;
  return {
      .layers = kv_layers(config), .kv_heads = config.kv_heads, .head_dim = config.head_dim, .dtype = host_.kv_dtype()};
}

// With a level of streams where there is an adapter that may borrow.
KvShape KvTrial::cache_shape() const {
  const ModelConfig& config = host_.file().config;
  KvShape shape{kv_layers(config), config.kv_heads, config.head_dim, host_.kv_dtype()};
  if (identities_.size() > 1) shape.streams = {.dim = config.hidden, .levels = 1, .layers = {1}};
  return shape;
}

Result<std::unique_ptr<KvTrial>> KvTrial::create(ModelHost& host, std::vector<KvTextPiece> pieces,
                                                 const Options& options) {
  std::unique_ptr<KvTrial> trial(new KvTrial(host));
  trial->identities_.push_back({});
  int32_t vocab = host.file().config.vocab;
  for (const Adapter* const adapter : options.adapters) {
    trial->identities_.push_back({.adapter = adapter});
    vocab = std::max(vocab, adapter->vocab);
    trial->next_version_ = std::max(trial->next_version_, adapter->version.value + 1);
  }
  TRY(host.executor().reserve_vocab(vocab));
  TRY(trial->place(std::move(pieces), options));
  for (size_t identity = 0; identity < trial->identities_.size(); ++identity) TRY(trial->compute_exact(identity));
  return trial;
}

int64_t KvTrial::kept_blocks_of(std::span<const KvTextPiece> pieces) const {
  int64_t blocks = 0;
  for (const KvTextPiece& piece : pieces) {
    const size_t owners = piece.identity == kKvAll ? identities_.size() : piece.identity == 0 ? 1 : 2;
    blocks += static_cast<int64_t>(owners * (piece.prefix / kKvBlockTokens));
  }
  return blocks;
}

// Which blocks are whose.
Status KvTrial::place(std::vector<KvTextPiece> pieces, const Options& options) {
  const KvShape shape = cache_shape();
  const int64_t block_bytes = kv_block_bytes(shape);
  const int64_t room = host_.ledger().available_bytes(MemoryUse::kKv) / 8 * 7 / block_bytes;
  int64_t scratch = options.prompt_tokens_most / kKvBlockTokens + 1;
  for (const KvTextPiece& piece : pieces) scratch = std::max<int64_t>(scratch, blocks_of(piece.tokens.size()));
  const int64_t in_a_step = host_.executor().limits().rows_max / kKvBlockTokens;
  scratch = std::max(scratch, std::min(kScratchSteps * in_a_step, room / 4));
  while (pieces.size() > 1 && kept_blocks_of(pieces) > room - scratch) thin_out(pieces, (pieces.size() + 1) / 2);
  pieces_ = std::move(pieces);
  std::map<size_t, size_t> seen;
  for (const KvTextPiece& piece : pieces_) halves_.push_back(static_cast<KvHalf>(seen[piece.identity]++ % 2));
  int32_t next = 0;
  for (size_t i = 0; i < identities_.size(); ++i) {
    for (const KvTextPiece& piece : pieces_) {
      const bool is_kept = i == 0 || is_of(piece, i);  // the base's are what others differ from
      identities_[i].kept.push_back(is_kept ? next : -1);
      if (is_kept) next += blocks_of(piece.prefix);
    }
  }
  scratch_ = next;
  TRY_ASSIGN(runner_, KvRunner::create(host_.executor(), host_.ledger(), host_.file().config, shape,
                                       next + static_cast<int32_t>(scratch)));
  scratch_blocks_ = static_cast<int32_t>(scratch);
  for (size_t i = 0; i < identities_.size(); ++i)
    for (const KvHalf half : {KvHalf::kSearched, KvHalf::kHeldOut}) form_groups(i, half);
  return {};
}

void KvTrial::form_groups(size_t identity, KvHalf half) {
  Part& part = identities_[identity].parts[static_cast<size_t>(half)];
  int32_t blocks = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_of(pieces_[i], identity) || halves_[i] != half) continue;
    part.positions += static_cast<int64_t>(pieces_[i].tokens.size() - pieces_[i].compared);
    const int32_t more = blocks_of(pieces_[i].tokens.size());
    if (part.groups.empty() || blocks + more > scratch_blocks_) part.groups.emplace_back(), blocks = 0;
    part.groups.back().pieces.push_back(i);
    part.groups.back().scratch.push_back(scratch_ + blocks);
    blocks += more;
  }
}

Status KvTrial::compute_prefixes(std::span<const size_t> pieces, std::span<const int32_t> first_blocks,
                                 const Adapter* adapter, int32_t base_layers) {
  std::vector<std::vector<int32_t>> tables;
  std::vector<KvRows> rows;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const KvTextPiece& piece = pieces_[pieces[i]];
    tables.push_back(table_from(first_blocks[i], blocks_of(piece.prefix)));
    rows.push_back({.tokens = std::span(piece.tokens).first(piece.prefix), .blocks = tables.back()});
  }
  return runner_->run(rows, adapter, {}, base_layers);
}

Status KvTrial::compute_rest(const Group& group, size_t identity, bool kept, const Compare& compare) {
  const Identity& own = identities_[identity];
  std::vector<std::vector<int32_t>> tables;
  std::vector<KvRows> rows;
  for (size_t i = 0; i < group.pieces.size(); ++i) {
    const KvTextPiece& piece = pieces_[group.pieces[i]];
    std::vector<int32_t>& table = tables.emplace_back(table_from(group.scratch[i], blocks_of(piece.tokens.size())));
    if (kept) std::iota(table.begin(), table.begin() + blocks_of(piece.prefix), own.kept[group.pieces[i]]);
    rows.push_back({.tokens = std::span(piece.tokens).subspan(piece.prefix),
                    .position = static_cast<int32_t>(piece.prefix),
                    .blocks = table,
                    .logits_from = piece.compared - piece.prefix});
  }
  return runner_->run(rows, own.adapter, [&](size_t sequence, size_t token, std::span<const float> logits) {
    const size_t piece = group.pieces[sequence];
    compare(piece, token - (pieces_[piece].compared - pieces_[piece].prefix), logits);
  });
}

Status KvTrial::compute_exact(size_t identity) {
  Identity& own = identities_[identity];
  std::vector<size_t> pieces;
  std::vector<int32_t> kept;
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (own.kept[i] >= 0) pieces.push_back(i), kept.push_back(own.kept[i]);
  TRY(compute_prefixes(pieces, kept, own.adapter));
  own.first.resize(pieces_.size());
  for (Part& part : own.parts) {
    for (const Group& group : part.groups) {
      TRY(compute_rest(group, identity, true, [&](size_t piece, size_t at, std::span<const float> logits) {
        if (at == 0) own.first[piece] = own.exact.size();
        own.exact.emplace_back(logits);
      }));
      for (const size_t piece : group.pieces) add_answer(piece, own, part);
    }
  }
  return {};
}

void KvTrial::add_answer(size_t piece, const Identity& own, Part& part) const {
  const KvTextPiece& text = pieces_[piece];
  if (!text.answer) return;
  double log_p = 0;
  for (size_t i = text.compared; i + 1 < text.tokens.size(); ++i)
    log_p += own.exact[own.first[piece] + i - text.compared].log_p(text.tokens[i + 1]);
  ++part.answers;
  part.answers_exact += std::exp(log_p);
  part.of_answers += static_cast<int64_t>(text.tokens.size() - text.compared);
}

KvQualityCount KvTrial::searched(size_t identity, double agreement) const {
  const Part& part = this->part(identity, KvHalf::kSearched);
  const bool by_answers = answers_tell(part.answers_exact, part.answers);
  return {part.positions - (by_answers ? part.of_answers : 0), agreement, by_answers};
}

void KvTrial::add(size_t piece, size_t at, std::span<const float> logits, size_t identity,
                  KvQualityCount& count) const {
  const Identity& own = identities_[identity];
  const KvTextPiece& text = pieces_[piece];
  const size_t next = text.compared + at + 1;
  const TokenId given = next < text.tokens.size() ? text.tokens[next] : kKvAnswerEnds;
  count.add(own.exact[own.first[piece] + at], logits, text.answer ? given : kKvNoAnswer);
}

void KvTrial::put_integers(const KvGrid& grid, const Group& group, size_t identity, KvNumbers& numbers) {
  const KvView& view = runner_->view();
  for (size_t i = 0; i < group.pieces.size(); ++i) {
    const size_t piece = group.pieces[i];
    for (int32_t block = 0; block < blocks_of(pieces_[piece].prefix); ++block) {
      const int32_t from = identities_[identity].kept[piece] + block, to = group.scratch[i] + block;
      if (kv_read(grid, view, from, numbers)) {
        kv_write(grid, numbers, view, to);
      } else {  // stays raw
        std::memcpy(view.slice(to, 0, 0), view.slice(from, 0, 0), static_cast<size_t>(view.block_stride_bytes));
      }
    }
  }
}

Status KvTrial::lossy(const KvGrid& grid, size_t identity, KvHalf half, KvQualityCount& count) {
  KvNumbers numbers(grid);
  for (const Group& group : part(identity, half).groups) {
    if (count.failed()) break;
    put_integers(grid, group, identity, numbers);
    TRY(compare_rest(group, identity, count));
  }
  return {};
}

Status KvTrial::borrowed(int32_t layers, size_t identity, KvHalf half, KvQualityCount& count) {
  for (const Group& group : part(identity, half).groups) {
    if (count.failed()) break;
    TRY(compute_prefixes(group.pieces, group.scratch, &from_layer(identity, layers), layers));
    TRY(compare_rest(group, identity, count));
  }
  return {};
}

const Adapter& KvTrial::from_layer(size_t identity, int32_t layers) {
  if (above_ == nullptr || above_is_ != std::pair(identity, layers)) {
    if (above_ != nullptr) runner_->forget(*above_);
    above_ = std::make_unique<Adapter>(
        adapter_from_layer(*identities_[identity].adapter, layers, AdapterVersionId{next_version_++}));
    above_is_ = {identity, layers};
  }
  return *above_;
}

Result<std::vector<TokenId>> KvTrial::answer(std::span<const TokenId> prompt, int32_t layers, size_t identity,
                                             int32_t tokens, std::span<const TokenId> ends) {
  const Adapter* const adapter = identities_[identity].adapter;
  const std::vector<int32_t> table = table_from(scratch_, blocks_of(prompt.size() + static_cast<size_t>(tokens)));
  size_t done = 0;
  const auto run = [&](size_t count, const Adapter* with, int32_t base_layers) -> Status {
    const KvRows rows{.tokens = prompt.subspan(done, count), .position = static_cast<int32_t>(done), .blocks = table};
    done += count;
    return count == 0 ? Status() : runner_->run({&rows, 1}, with, {}, base_layers);
  };
  if (layers > 0) TRY(run(kv_shared_tokens(prompt.size()), &from_layer(identity, layers), layers));
  TRY(run(prompt.size() - 1 - done, adapter, 0));
  std::vector<TokenId> answer;
  TokenId last = prompt.back();
  while (static_cast<int32_t>(answer.size()) < tokens) {
    const KvRows row{.tokens = {&last, 1},
                     .position = static_cast<int32_t>(prompt.size() - 1 + answer.size()),
                     .blocks = table,
                     .logits_from = 0};
    TokenId next = 0;
    TRY(runner_->run({&row, 1}, adapter,
                     [&](size_t, size_t, std::span<const float> logits) { next = likeliest_token(logits); }));
    answer.push_back(next);
    if (std::find(ends.begin(), ends.end(), next) != ends.end()) break;
    last = next;
  }
  return answer;
}

void KvTrial::for_kept(size_t identity,
                       const std::function<void(size_t piece, int32_t block, int32_t base)>& call) const {
  for (size_t piece = 0; piece < pieces_.size(); ++piece) {
    const int32_t first = identities_[identity].kept[piece];
    for (int32_t block = 0; first >= 0 && block < blocks_of(pieces_[piece].prefix); ++block)
      call(piece, first + block, identities_[0].kept[piece] + block);
  }
}

std::vector<float> KvTrial::spread() const {
  KvSpread spread(shape());
  for_kept(0, [&](size_t piece, int32_t block, int32_t) {
    if (half(piece) == KvHalf::kSearched) spread.add(runner_->view(), block);
  });
  return spread.spread();
}

void KvTrial::add_entropies(const KvGrid& grid, size_t identity, std::span<double> bits) const {
  const KvGridShape shape = grid.shape();
  int64_t blocks = 0, seen = 0;
  const auto of_half = [&](size_t piece) { return half(piece) == KvHalf::kSearched; };
  for_kept(identity, [&](size_t piece, int32_t, int32_t) { blocks += of_half(piece) ? 1 : 0; });
  const int64_t every = (blocks + kEntropyBlocks - 1) / kEntropyBlocks;
  const size_t heads = bits.size() * static_cast<size_t>(shape.kv_heads);
  std::vector<uint32_t> counts(heads * kCounted);
  KvNumbers numbers(grid), base(grid);
  for_kept(identity, [&](size_t piece, int32_t block, int32_t beside) {
    if (!of_half(piece) || seen++ % every != 0) return;
    const KvView& view = runner_->view();
    if (!kv_read(grid, view, block, numbers) || !kv_read(grid, view, beside, base)) return;
    uint32_t* of_head = counts.data();
    for (int32_t row = 0; row < 2 * shape.layers; ++row) {
      for (int32_t head = 0; head < shape.kv_heads; ++head, of_head += kCounted) {
        const int16_t* const integers = numbers.head(row / 2, row % 2, head);
        const int16_t* const from = base.head(row / 2, row % 2, head);
        for (int64_t i = 0; i < shape.head_numbers(); ++i) {
          const int32_t told = integers[i] - (identity == 0 ? 0 : from[i]);
          ++of_head[std::clamp(told, -kCountedFarthest, kCountedFarthest - 1) + kCountedFarthest];
        }
      }
    }
  });
  for (size_t head = 0; head < heads; ++head)
    bits[head / static_cast<size_t>(shape.kv_heads)] +=
        entropy(std::span(counts).subspan(head * kCounted, kCounted)) / shape.kv_heads;
}

std::vector<double> KvTrial::entropies(const KvGrid& grid) const {
  std::vector<double> bits(2 * static_cast<size_t>(grid.shape().layers));
  double owners = 0;
  for (size_t identity = 0; identity < identities_.size(); ++identity) {
    if (identity > 0 && identities_[identity].exact.empty()) continue;
    add_entropies(grid, identity, bits);
    ++owners;
  }
  for (double& one : bits) one /= owners;
  return bits;
}

KvTrial::Bits KvTrial::bits(const KvGrid& grid, size_t identity) const {
  std::vector<std::byte> room(kv_blob_bound(grid));
  KvNumbers numbers(grid), base(grid);
  const auto raw = static_cast<double>(grid.shape().numbers() * row_bytes(grid.shape().dtype, 1));
  double alone = 0, delta = 0, all = 0;
  for_kept(identity, [&](size_t, int32_t block, int32_t beside) {
    const KvView& view = runner_->view();
    const bool has = kv_read(grid, view, block, numbers), anchored = has && kv_read(grid, view, beside, base);
    const double bytes = has ? static_cast<double>(kv_encode(grid, numbers, nullptr, room)) : raw;
    alone += bytes;
    delta += anchored ? std::min(bytes, static_cast<double>(kv_encode(grid, numbers, &base, room))) : bytes;
    all += static_cast<double>(grid.shape().numbers());
  });
  return all > 0 ? Bits{8 * alone / all, 8 * delta / all} : Bits{};
}

}  // namespace loralei
