// SPDX-License-Identifier: Apache-2.0
// TokenModel: one word to ids; BpeModel: byte-pair encoding by merge ranks, as Hugging
// Face tokenizers do it.
//
// Thread: immutable after construction.
// Ownership: the TokenTable is kept alive by the core that owns both.
// Invariants: merging takes O(n log n) for a word of n bytes (a heap over a linked list).
// Failure: encode() of BPE fails where the work is not granted; the loader refuses merges
// that name unknown tokens.
// Source: tokenizers/src/models/bpe (Apache-2.0): equal ranks merge from the left;
// an entry of the heap is stale unless its pair still merges into the same token.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/work.h"
#include "text/tokenizer_table.h"

namespace loralei {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of `word`, which is valid UTF-8 and not empty.
  virtual Status encode(std::string_view word, std::vector<TokenId>& ids, Work& work) const = 0;
  // How many bytes of a word one id may stand for; 0: any number, or some are dropped.
  // `byte_level`: words are bytes written as the characters of byte_level_char(),
  // which are counted.
  virtual size_t longest_bytes(bool byte_level) const = 0;

  static constexpr int64_t kSymbolWork = 64;  // a character looked up, a pair merged
};

// Ids of the tokens <0x00>..<0xFF>; -1 where the vocabulary lacks one.
struct ByteTokens {
  std::array<TokenId, 256> ids{};
  static ByteTokens find(const TokenTable& table);
  bool covers(std::string_view bytes) const;
  bool complete() const;
};

// {left id, right id} -> {rank, merged id}; open addressing, since vocabularies have up
// to half a million merges.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    TokenId id;
  };
  explicit MergeTable(size_t expected);
  // A later rule for the same pair replaces the earlier one.
  void set(TokenId left, TokenId right, Merge merge);
  const Merge* find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Merge merge{0, 0};
  };
  size_t probe(uint64_t key) const;
  std::vector<Slot> slots_;  // a power of two, at most half full
};

struct BpeOptions {
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool fuse_unk = false;
  TokenId unk = -1;  // -1: unknown characters are dropped, as the reference does without an unk token
};

class BpeModel final : public TokenModel {
 public:
  BpeModel(const TokenTable& table, MergeTable merges, BpeOptions options);
  Status encode(std::string_view word, std::vector<TokenId>& ids, Work& work) const override;
  size_t longest_bytes(bool byte_level) const override;

 private:
  struct Symbol {
    TokenId id;
    int32_t previous, next;  // -1 at the ends
    bool dead;
  };
  Status first_symbols(std::string_view word, std::vector<Symbol>& symbols, Work& work) const;
  Status merge(std::vector<Symbol>& symbols, Work& work) const;

  const TokenTable& table_;
  MergeTable merges_;
  ByteTokens bytes_;
  BpeOptions options_;
};

}  // namespace loralei
