// SPDX-License-Identifier: Apache-2.0
// Random texts in random pieces, in every way that this machine has, against what the
// header says.
#include "base/page_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span<const char>(text)); }

Digest sha_of(std::span<const std::byte> bytes) {
  Sha256 sha(true);
  sha.update(bytes);
  return sha.finish();
}

Digest expected(const std::string& text) {
  std::string digests;
  for (size_t at = 0; at < text.size(); at += kHashPageBytes) {
    const Digest digest = sha_of(bytes_of(text.substr(at, kHashPageBytes)));
    digests.append(digest.begin(), digest.end());
  }
  return sha_of(bytes_of(digests));
}

std::string random_text(Prng& random, size_t count) {
  std::string text(count, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

TEST(PageHash, PiecesAndNeighboursDoNotMatter) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Prng random(seed);
    std::vector<std::string> texts(1 + random.below(5));
    for (std::string& text : texts) {
      const size_t pages = random.below(random.below(4) == 0 ? 90 : 20);
      text = random_text(random, pages * kHashPageBytes + (random.below(2) == 0 ? 0 : random.below(kHashPageBytes)));
    }
    for (const PageHashWay& way : page_hash_ways()) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << way.name);
      std::vector<PageHash> hashes(texts.size());
      std::vector<size_t> done(texts.size());
      while (done != std::vector<size_t>(texts.size(), std::string::npos)) {
        std::vector<PageHash::Piece> pieces;
        for (size_t i = 0; i < texts.size(); ++i) {
          if (done[i] == std::string::npos) continue;
          const size_t count = std::min(texts[i].size() - done[i],
                                        random.below(3) == 0 ? random.below(100) : random.below(40 * kHashPageBytes));
          pieces.push_back({&hashes[i], bytes_of(texts[i]).subspan(done[i], count)});
          done[i] += count;
          if (done[i] == texts[i].size()) done[i] = std::string::npos;
        }
        PageHash::update_all(pieces, way);
      }
      for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(hashes[i].finish(), expected(texts[i])) << i;
    }
  }
}

// Of every number of pages, in every place among sixteen.
TEST(PageHash, EveryWayHashesPagesAlike) {
  Prng random(7);
  const std::string text = random_text(random, 70 * kHashPageBytes);
  std::vector<const std::byte*> pages;
  std::vector<Digest> want;
  for (size_t i = 0; i < 70; ++i) {
    pages.push_back(bytes_of(text).data() + i * kHashPageBytes);
    want.push_back(sha_of({pages.back(), kHashPageBytes}));
  }
  for (const PageHashWay& way : page_hash_ways()) {
    for (size_t count = 0; count <= pages.size(); ++count) {
      std::vector<Digest> digests(count);
      way.pages(std::span(pages).first(count), digests);
      ASSERT_TRUE(std::equal(digests.begin(), digests.end(), want.begin())) << way.name << ", " << count << " pages";
    }
  }
}

TEST(PageHash, ShortTexts) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kHashPageBytes - 1, kHashPageBytes, kHashPageBytes + 1}) {
    const std::string text(bytes, 'a');
    PageHash hash;
    hash.update(bytes_of(text));
    EXPECT_EQ(hash.finish(), expected(text)) << bytes;
  }
}

}  // namespace
}  // namespace loralei
