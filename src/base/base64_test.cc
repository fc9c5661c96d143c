// SPDX-License-Identifier: Apache-2.0
#include "base/base64.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(Base64, IsThatOfItsStandard) {
  const std::pair<const char*, const char*> kVectors[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"},
                                                          {"\xff\xfe\xfd", "//79"}};
  for (const auto& [bytes, text] : kVectors) {
    EXPECT_EQ(base64_encode(bytes), text);
    EXPECT_EQ(base64_decode(text), bytes);
  }
}

TEST(Base64, TakesNothingElse) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zg==Zg==", "Zh==", "Zm9=", "====", "=", "Z===", "Zm9v\n", "Zm9-", "Zm 9"})
    EXPECT_FALSE(base64_decode(text)) << text;
}

TEST(Base64, IsReadAsItWasWritten) {
  const uint64_t seed = 3;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(prng.below(40), '\0');
    for (char& c : bytes) c = static_cast<char>(prng.below(256));
    const std::string text = base64_encode(bytes);
    ASSERT_EQ(base64_decode(text), bytes);
    if (text.empty()) continue;
    std::string changed = text;
    changed[prng.below(text.size())] = static_cast<char>(prng.below(256));
    const auto read = base64_decode(changed);
    if (read) {
      ASSERT_EQ(base64_encode(*read), changed);
    }
  }
}

}  // namespace
}  // namespace loralei
