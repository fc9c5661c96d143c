// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace loralei {
namespace {

CatalogueEntry entry(const std::string& name, const std::string& path) {
  return {name, path, "", AdapterOrigin::kHttp, 7, 0};
}

TEST(Catalogue, AddFindReplaceRemove) {
  auto catalogue = make_memory_catalogue();
  EXPECT_TRUE(catalogue->add(entry("a", "/1"), false).ok());
  EXPECT_TRUE(catalogue->add(entry("b", "/2"), false).ok());
  EXPECT_TRUE(catalogue->add(entry("a", "/1"), false).ok());
  const Status clash = catalogue->add(entry("a", "/3"), false);
  ASSERT_FALSE(clash.ok());
  EXPECT_NE(clash.error().message.find("/1"), std::string::npos);
  EXPECT_FALSE(catalogue->add(entry("", "/3"), false).ok());
  const uint64_t before = catalogue->find("a")->generation;
  EXPECT_TRUE(catalogue->add(entry("a", "/3"), true).ok());
  EXPECT_EQ(catalogue->find("a")->path, "/3");
  EXPECT_NE(catalogue->find("a")->generation, before);
  EXPECT_EQ(catalogue->at(0)->name, "a");  // replaced in place
  EXPECT_FALSE(catalogue->at(2));
  EXPECT_TRUE(catalogue->remove("a"));
  EXPECT_FALSE(catalogue->remove("a"));
  EXPECT_EQ(catalogue->at(0)->name, "b");
}

TEST(Catalogue, AGenerationChosenBeforeIsKeptAndDoesNotChangeTheOrder) {
  auto catalogue = make_memory_catalogue();
  CatalogueEntry early = entry("early", "/e");
  early.generation = catalogue->new_generation();
  ASSERT_TRUE(catalogue->add(entry("first", "/f"), false).ok());
  ASSERT_TRUE(catalogue->add(early, false).ok());
  EXPECT_EQ(catalogue->find("early")->generation, early.generation);
  EXPECT_NE(catalogue->find("first")->generation, early.generation);
  EXPECT_EQ(catalogue->at(1)->name, "early");
}

TEST(Catalogue, AgreesWithANaiveList) {
  const uint64_t seed = 42;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  auto catalogue = make_memory_catalogue();
  std::vector<std::pair<std::string, std::string>> naive;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "n" + std::to_string(prng.below(20));
    const std::string path = "p" + std::to_string(prng.below(3));
    const auto known = std::find_if(naive.begin(), naive.end(), [&](const auto& e) { return e.first == name; });
    if (prng.below(3) == 0) {
      EXPECT_EQ(catalogue->remove(name), known != naive.end());
      if (known != naive.end()) naive.erase(known);
    } else {
      const bool replace = prng.below(2) == 0;
      EXPECT_EQ(catalogue->add(entry(name, path), replace).ok(),
                known == naive.end() || replace || known->second == path);
      if (known == naive.end())
        naive.emplace_back(name, path);
      else if (replace)
        known->second = path;
    }
    const auto all = catalogue->list();
    ASSERT_EQ(all.size(), naive.size());
    for (size_t k = 0; k < all.size(); ++k) {
      EXPECT_EQ(all[k].name, naive[k].first);
      EXPECT_EQ(all[k].path, naive[k].second);
      EXPECT_EQ(catalogue->at(k)->name, all[k].name);
    }
  }
}

}  // namespace
}  // namespace loralei
