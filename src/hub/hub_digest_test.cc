// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_digest.h"

#include <gtest/gtest.h>

#include "sys/memory_file_system.h"

namespace loralei {
namespace {

std::string digest(std::string text, size_t digits) {
  MemoryFileSystem files;
  files.put("/one", std::move(text));
  return hub_digest(*files.open("/one").value(), std::string(digits, '0'), nullptr).value();
}

// As `git hash-object` and `sha256sum` have them.
TEST(HubDigest, IsGitsOrSha256) {
  EXPECT_EQ(digest("", 40), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(digest("hello\n", 40), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(digest("", 64), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("hello\n", 64), "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
}

TEST(HubDigest, OfManyChunks) {
  const std::string text((size_t{5} << 20) + 3, 'x');
  std::string other = text;
  other.back() = 'y';
  for (const size_t digits : {40, 64}) EXPECT_NE(digest(text, digits), digest(other, digits));
}

}  // namespace
}  // namespace loralei
