// SPDX-License-Identifier: Apache-2.0
// KvTrial: what answers become when the K and V of what stands before them are other
// numbers: integers of a grid, or the base's instead of an adapter's.
//
//   piece   | prefix, full blocks: kept as computed | rest: computed on it | compared |
//
// Pieces of a text are computed once for the base and for the adapters whose they are;
// the next token's distribution at each compared position is what others are compared
// with. Then another prefix is put in the place of the kept one, and the rest computed
// anew.
//
// Thread: one. Ownership: owns cache, pieces and distributions; borrows the host and the
// adapters.
// Invariants: what is kept never changes after create(). A trial ends as soon as its
// agreement cannot be reached any more.
// Failure: what the model or memory refuse, in a sentence; a text that is too short.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/kv_quality.h"
#include "bench/kv_runner.h"
#include "codec/kv_numbers.h"
#include "engine/model_host.h"

namespace loralei {

inline constexpr size_t kKvAll = SIZE_MAX;  // the base's and all adapters'

// A text as it comes. Of one with a prompt the answer is compared, else what comes behind
// three quarters of each piece.
struct KvDocument {
  std::vector<TokenId> tokens;
  size_t prompt = 0;         // tokens of it that are the prompt; 0: there is none
  size_t identity = kKvAll;  // whose: 0 the base's, else that of adapter `identity` - 1
};
struct KvTextPiece {
  std::vector<TokenId> tokens;
  size_t prefix = 0;    // tokens, a multiple of kKvBlockTokens, at least one block
  size_t compared = 0;  // first position whose next token is compared; not in the prefix
  size_t identity = kKvAll;
  bool answer = false;  // what is compared is a whole answer
};
// Of each identity's pieces every other one is held out: steps are searched by some, and
// what they do is measured on the others. Who has one piece alone has it in both halves.
enum class KvHalf : size_t { kSearched, kHeldOut };
inline constexpr size_t kKvPieceTokens = 256, kKvPieceLeast = 32;
// Pieces of one document each, `tokens` tokens in all, at even distances: of documents
// with a prompt whole ones, of others up to kKvPieceTokens tokens behind `begin` (a BOS
// token). What is too short, or longer than the model takes, is left out.
Result<std::vector<KvTextPiece>> cut_kv_pieces(std::span<const KvDocument> documents, std::span<const TokenId> begin,
                                               int64_t tokens, int64_t max_model_len);
// Tokens of a prompt that others may have computed: full blocks of all but the last 3.
size_t kv_shared_tokens(size_t prompt_tokens);

class KvTrial {
 public:
  struct Options {
    std::vector<const Adapter*> adapters;  // beside the base
    int64_t prompt_tokens_most = 0;        // of prompts and their answers
  };
  // Fewer pieces where memory has no room for all; `pieces()` are those.
  static Result<std::unique_ptr<KvTrial>> create(ModelHost& host, std::vector<KvTextPiece> pieces,
                                                 const Options& options);

  const std::vector<KvTextPiece>& pieces() const { return pieces_; }
  KvGridShape shape() const;
  size_t identities() const { return identities_.size(); }  // the base, then each adapter
  // Which half a piece is in; of one that is the only one of its identity: kSearched.
  KvHalf half(size_t piece) const { return halves_[piece]; }
  int64_t positions(size_t identity, KvHalf half) const { return part(identity, half).positions; }  // compared
  // To count the searched half against an agreement: answers as such where they say
  // something (answers_tell), and positions of the rest.
  KvQualityCount searched(size_t identity, double agreement) const;
  // Of the base's kept prefixes of the searched half.
  std::vector<float> spread() const;
  // Bits of a number of each layer's K and V [layers][2] in prefixes of that half, the
  // mean of all identities: the entropy of each head's integers, of the base's as they
  // are, of an adapter's as differences from the base's.
  std::vector<double> entropies(const KvGrid& grid) const;
  // Bits of a number of all prefixes as blobs: alone, and as differences from the base's.
  // A block without integers counts as it is in the cache.
  struct Bits {
    double alone = 0, delta = 0;
  };
  Bits bits(const KvGrid& grid, size_t identity) const;

  // With prefixes from integers.
  Status lossy(const KvGrid& grid, size_t identity, KvHalf half, KvQualityCount& count);
  // With prefixes of the base below layer `layers`, computed as a server that lends does;
  // identity > 0.
  Status borrowed(int32_t layers, size_t identity, KvHalf half, KvQualityCount& count);

  // The greedy answer of up to `tokens` tokens, until one of `ends`. With `layers` > 0
  // kv_shared_tokens of the prompt have the base's K and V below that layer.
  Result<std::vector<TokenId>> answer(std::span<const TokenId> prompt, int32_t layers, size_t identity, int32_t tokens,
                                      std::span<const TokenId> ends);

 private:
  // Pieces that are computed together, and the first scratch block of each.
  struct Group {
    std::vector<size_t> pieces;
    std::vector<int32_t> scratch;
  };
  // What is compared of a half.
  struct Part {
    std::vector<Group> groups;
    int64_t positions = 0, answers = 0, of_answers = 0;  // the last: positions
    double answers_exact = 0;                            // the sum of their probabilities
  };
  struct Identity {
    const Adapter* adapter = nullptr;
    std::vector<int32_t> kept;          // [pieces] first block of the prefix; -1: not this one's
    std::vector<size_t> first;          // [pieces] into `exact`
    std::array<Part, 2> parts;          // by KvHalf
    std::vector<KvDistribution> exact;  // of all compared positions
  };
  explicit KvTrial(ModelHost& host) : host_(host) {}
  KvShape cache_shape() const;
  Status place(std::vector<KvTextPiece> pieces, const Options& options);
  int64_t kept_blocks_of(std::span<const KvTextPiece> pieces) const;
  static bool is_of(const KvTextPiece& piece, size_t identity) {
    return piece.identity == kKvAll || piece.identity == identity;
  }
  // The searched one where nothing is held out.
  const Part& part(size_t identity, KvHalf half) const {
    const auto& parts = identities_[identity].parts;
    return parts[half == KvHalf::kHeldOut && !parts[1].groups.empty() ? 1 : 0];
  }
  void form_groups(size_t identity, KvHalf half);
  Status compute_exact(size_t identity);
  void add_answer(size_t piece, const Identity& own, Part& part) const;
  void add(size_t piece, size_t at, std::span<const float> logits, size_t identity, KvQualityCount& count) const;
  // Prefixes of a group into its scratch blocks, or (`kept`) of all pieces where they are
  // kept.
  Status compute_prefixes(std::span<const size_t> pieces, std::span<const int32_t> first_blocks, const Adapter* adapter,
                          int32_t base_layers = 0);
  // The rest of a group on prefixes in scratch blocks (`kept`: on kept ones).
  // `at`: of the piece's compared positions; of each all are told in order.
  using Compare = std::function<void(size_t piece, size_t at, std::span<const float> logits)>;
  Status compute_rest(const Group& group, size_t identity, bool kept, const Compare& compare);
  // On prefixes in scratch blocks, counted against the exact ones.
  Status compare_rest(const Group& group, size_t identity, KvQualityCount& count) {
    return compute_rest(group, identity, false, [&](size_t piece, size_t at, std::span<const float> logits) {
      add(piece, at, logits, identity, count);
    });
  }
  void put_integers(const KvGrid& grid, const Group& group, size_t identity, KvNumbers& numbers);
  const Adapter& from_layer(size_t identity, int32_t layers);
  void add_entropies(const KvGrid& grid, size_t identity, std::span<double> bits) const;
  // Calls for every kept block of an identity, with the base's beside it.
  void for_kept(size_t identity, const std::function<void(size_t piece, int32_t block, int32_t base)>& call) const;

  ModelHost& host_;
  std::vector<KvTextPiece> pieces_;
  std::vector<KvHalf> halves_;  // [pieces]
  std::vector<Identity> identities_;
  int32_t scratch_ = 0, scratch_blocks_ = 0;  // the first block that is not kept, and how many
  uint64_t next_version_ = 1;
  // The adapter of the last depth: what the runner has been told of outlives it.
  std::unique_ptr<Adapter> above_;
  std::pair<size_t, int32_t> above_is_{0, 0};
  std::unique_ptr<KvRunner> runner_;
};

}  // namespace loralei
