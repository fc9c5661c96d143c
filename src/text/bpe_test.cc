// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/prng.h"
#include "text/spm.h"
#include "text/tokenizer_unigram.h"

namespace loralei {
namespace {

std::vector<TokenId> encode(const TokenModel& model, std::string_view word) {
  std::vector<TokenId> ids;
  Work work;
  const Status status = model.encode(word, ids, work);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return ids;
}

// A vocabulary over {a, b, c} whose pieces are joins of earlier ones.
struct RandomVocab {
  TokenTable table;
  std::vector<std::string> pieces{"a", "b", "c"};
  std::vector<std::pair<TokenId, TokenId>> merges;  // in rank order

  explicit RandomVocab(Prng& prng) {
    for (int i = 0; i < 12; ++i) {
      const auto left = prng.below(pieces.size()), right = prng.below(pieces.size());
      const std::string whole = pieces[left] + pieces[right];
      const auto known = std::find(pieces.begin(), pieces.end(), whole);
      if (whole.size() > 8) continue;
      if (known == pieces.end()) pieces.push_back(whole);
      merges.emplace_back(static_cast<TokenId>(left), static_cast<TokenId>(right));
    }
    for (size_t i = 0; i < pieces.size(); ++i) EXPECT_TRUE(table.add(static_cast<TokenId>(i), pieces[i]).ok());
    table.finish();
  }
  TokenId id(const std::string& piece) const { return *table.find(piece); }
};

std::string random_word(Prng& prng, uint64_t most) {
  std::string word;
  for (uint64_t i = 1 + prng.below(most); i > 0; --i) word += static_cast<char>('a' + prng.below(3));
  return word;
}

// Scans for the best pair again and again, as the definition says.
std::vector<TokenId> naive_bpe(const RandomVocab& vocab, const std::map<std::pair<TokenId, TokenId>, uint32_t>& ranks,
                               const std::string& word) {
  std::vector<TokenId> ids;
  for (const char c : word) ids.push_back(vocab.id(std::string(1, c)));
  while (true) {
    size_t best = ids.size();
    uint32_t best_rank = ~0u;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best_rank = found->second;
        best = i;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] =
        vocab.id(vocab.pieces[static_cast<size_t>(ids[best])] + vocab.pieces[static_cast<size_t>(ids[best + 1])]);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, EqualsTheDefinition) {
  const uint64_t seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int round = 0; round < 300; ++round) {
    const RandomVocab vocab(prng);
    MergeTable merges(vocab.merges.size());
    std::map<std::pair<TokenId, TokenId>, uint32_t> ranks;
    for (uint32_t rank = 0; rank < vocab.merges.size(); ++rank) {
      const auto [left, right] = vocab.merges[rank];
      merges.set(left, right,
                 {rank, vocab.id(vocab.pieces[static_cast<size_t>(left)] + vocab.pieces[static_cast<size_t>(right)])});
      ranks[vocab.merges[rank]] = rank;
    }
    const BpeModel model(vocab.table, std::move(merges), {});
    for (int i = 0; i < 20; ++i) {
      const std::string word = random_word(prng, 24);
      ASSERT_EQ(encode(model, word), naive_bpe(vocab, ranks, word)) << word;
    }
  }
}

TEST(Bpe, SentencePieceScoresEqualTheDefinition) {
  const uint64_t seed = 12;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int round = 0; round < 300; ++round) {
    const RandomVocab vocab(prng);
    std::vector<float> scores;
    for (size_t i = 0; i < vocab.pieces.size(); ++i) scores.push_back(-static_cast<float>(prng.below(6)));
    const SpmBpeModel model(vocab.table, std::vector<SpmPieceType>(vocab.pieces.size(), SpmPieceType::kNormal), scores,
                            {});
    for (int i = 0; i < 20; ++i) {
      const std::string word = random_word(prng, 24);
      std::vector<std::string> parts;
      for (const char c : word) parts.emplace_back(1, c);
      while (true) {
        size_t best = parts.size();
        for (size_t at = 0; at + 1 < parts.size(); ++at) {
          const auto id = vocab.table.find(parts[at] + parts[at + 1]);
          if (!id) continue;
          if (best == parts.size() ||
              scores[static_cast<size_t>(*id)] > scores[static_cast<size_t>(vocab.id(parts[best] + parts[best + 1]))])
            best = at;
        }
        if (best == parts.size()) break;
        parts[best] += parts[best + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      }
      std::vector<TokenId> wanted;
      for (const std::string& part : parts) wanted.push_back(vocab.id(part));
      ASSERT_EQ(encode(model, word), wanted) << word;
    }
  }
}

TEST(Unigram, FindsTheBestSegmentation) {
  const uint64_t seed = 13;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int round = 0; round < 200; ++round) {
    const RandomVocab vocab(prng);
    std::vector<UnigramPiece> pieces;
    for (size_t i = 0; i < vocab.pieces.size(); ++i) pieces.push_back({static_cast<TokenId>(i), -prng.uniform() * 10});
    const UnigramModel model(vocab.table, pieces, {});
    for (int i = 0; i < 20; ++i) {
      const std::string word = random_word(prng, 12);
      // All segmentations, best total by end.
      std::vector<double> best(word.size() + 1, -1e9);
      best[0] = 0;
      for (size_t end = 1; end <= word.size(); ++end) {
        for (const UnigramPiece& piece : pieces) {
          const std::string& text = vocab.pieces[static_cast<size_t>(piece.id)];
          if (text.size() > end || std::string_view(word).substr(0, end).ends_with(text) == false) continue;
          best[end] = std::max(best[end], best[end - text.size()] + piece.score);
        }
      }
      double total = 0;
      std::string joined;
      for (const TokenId id : encode(model, word)) {
        total += pieces[static_cast<size_t>(id)].score;
        joined += vocab.pieces[static_cast<size_t>(id)];
      }
      ASSERT_EQ(joined, word);
      ASSERT_NEAR(total, best[word.size()], 1e-9);
    }
  }
}

TEST(Bpe, LongWordsAreNotQuadratic) {
  Prng prng(5);
  const RandomVocab vocab(prng);
  MergeTable merges(vocab.merges.size());
  for (uint32_t rank = 0; rank < vocab.merges.size(); ++rank) {
    const auto [left, right] = vocab.merges[rank];
    merges.set(left, right,
               {rank, vocab.id(vocab.pieces[static_cast<size_t>(left)] + vocab.pieces[static_cast<size_t>(right)])});
  }
  const BpeModel ranked(vocab.table, std::move(merges), {});
  const SpmBpeModel scored(vocab.table, std::vector<SpmPieceType>(vocab.pieces.size(), SpmPieceType::kNormal),
                           std::vector<float>(vocab.pieces.size(), -1.0f), {});
  // A million bytes: a quadratic merge would not end within the test's time limit.
  const std::string word(1 << 20, 'a');
  for (const TokenModel* model : {static_cast<const TokenModel*>(&ranked), static_cast<const TokenModel*>(&scored)}) {
    size_t bytes = 0;
    for (const TokenId id : encode(*model, word)) bytes += vocab.pieces[static_cast<size_t>(id)].size();
    EXPECT_EQ(bytes, word.size());
  }
}

TEST(PrefixIndex, EqualsATrialOfEveryEntry) {
  Prng prng(6);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> texts;
    for (int i = 0; i < 20; ++i) texts.push_back(random_word(prng, 5));
    std::vector<PrefixIndex::Entry> entries;
    for (size_t i = 0; i < texts.size(); ++i) entries.push_back({texts[i], static_cast<int32_t>(i)});
    PrefixIndex index;
    index.build(entries);
    const std::string word = random_word(prng, 8);
    std::vector<size_t> found, wanted;
    index.for_each_prefix(word, [&](size_t length, int32_t value) {
      found.push_back(length);
      EXPECT_EQ(texts[static_cast<size_t>(value)], word.substr(0, length));
    });
    for (size_t length = 1; length <= word.size(); ++length) {
      if (std::find(texts.begin(), texts.end(), word.substr(0, length)) != texts.end()) wanted.push_back(length);
    }
    ASSERT_EQ(found, wanted);
  }
}

TEST(TokenTable, RefusesWhatDoesNotFit) {
  TokenTable table;
  EXPECT_TRUE(table.add(5, "five").ok());
  EXPECT_FALSE(table.add(5, "again").ok());
  EXPECT_FALSE(table.add(-1, "x").ok());
  EXPECT_FALSE(table.add(1'000'000'000, "x").ok());
  EXPECT_FALSE(table.add(6, std::string(kMaxPieceBytes + 1, 'x')).ok());
  table.finish();
  EXPECT_EQ(table.size(), 6);
  EXPECT_FALSE(table.has(4));
  EXPECT_EQ(table.find("five"), 5);
  EXPECT_EQ(table.find("six"), std::nullopt);
}

}  // namespace
}  // namespace loralei
