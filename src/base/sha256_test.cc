// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/prng.h"

namespace loralei {
namespace {

std::string hash_on(bool plain, const std::string& text, size_t piece) {
  Sha256 sha(plain);
  for (size_t at = 0; at < text.size(); at += piece) {
    sha.update(std::as_bytes(std::span(text).subspan(at, std::min(piece, text.size() - at))));
  }
  return digest_hex(sha.finish());
}

// On both paths, which must agree.
std::string hash(const std::string& text, size_t piece) {
  const std::string digest = hash_on(true, text, piece);
  EXPECT_EQ(hash_on(false, text, piece), digest);
  return digest;
}

// The examples of FIPS 180-4 (and the empty message).
TEST(Sha256, PublishedExamples) {
  EXPECT_EQ(hash("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 7),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1000000, 'a'), 4093), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesDoNotMatter) {
  Prng random(20);
  for (size_t size = 0; size < 200; ++size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>(random());
    const std::string whole = hash(text, 1000);
    EXPECT_EQ(hash(text, 1), whole) << size;
    EXPECT_EQ(hash(text, 1 + random.below(70)), whole) << size;
  }
}

// In pieces of any lengths, on both paths and on one of each.
TEST(Sha256, TwoStreamsAtOnceAreEachItsOwn) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    std::array<std::string, 2> texts;
    std::array<Sha256, 2> streams = {Sha256(seed % 3 == 0), Sha256(seed % 3 < 2)};
    for (int round = 0; round < 5; ++round) {
      std::array<std::string, 2> added;
      for (size_t i = 0; i < 2; ++i) {
        for (size_t left = random.below(random.below(3) == 0 ? 1000 : 130); left > 0; --left)
          added[i] += static_cast<char>(random());
        texts[i] += added[i];
      }
      const auto bytes = [&](size_t i) { return std::as_bytes(std::span<const char>(added[i])); };
      Sha256::update_two(streams[0], bytes(0), streams[1], bytes(1));
    }
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(digest_hex(streams[i].finish()), hash(texts[i], 1000)) << i;
  }
}

}  // namespace
}  // namespace loralei
