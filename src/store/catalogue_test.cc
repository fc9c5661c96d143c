// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace loralei {
namespace {

CatalogueEntry entry(const std::string& name, const std::string& path) {
  return {name, path, "", AdapterOrigin::kHttp, 7, {}, nullptr};
}

TEST(Catalogue, AddFindReplaceRemove) {
  auto catalogue = make_memory_catalogue();
  EXPECT_TRUE(catalogue->add(entry("a", "/1")).ok());
  EXPECT_TRUE(catalogue->add(entry("b", "/2")).ok());
  EXPECT_TRUE(catalogue->add(entry("a", "/1")).ok());
  const Status clash = catalogue->add(entry("a", "/3"));
  ASSERT_FALSE(clash.ok());
  EXPECT_NE(clash.error().message.find("/1"), std::string::npos);
  EXPECT_FALSE(catalogue->add(entry("", "/3")).ok());
  EXPECT_EQ(catalogue->replace(entry("a", "/3"))->path, "/1");
  EXPECT_EQ(catalogue->find("a")->path, "/3");
  EXPECT_FALSE(catalogue->replace(entry("c", "/3")));
  EXPECT_FALSE(catalogue->find("c"));
  EXPECT_EQ(catalogue->at(0)->name, "a");  // replaced in place
  EXPECT_FALSE(catalogue->at(2));
  EXPECT_TRUE(catalogue->remove("a"));
  EXPECT_FALSE(catalogue->remove("a"));
  EXPECT_EQ(catalogue->at(0)->name, "b");
}

TEST(Catalogue, SourcesAreNeverReusedAndLiveAsLongAsSomebodyHasTheirEntry) {
  auto catalogue = make_memory_catalogue();
  CatalogueEntry one = entry("a", "/1"), two = entry("a", "/2");
  one.source = catalogue->new_source();
  two.source = catalogue->new_source();
  EXPECT_NE(one.source, two.source);
  const auto keep = std::make_shared<int>(0);
  one.keep = keep;
  ASSERT_TRUE(catalogue->add(std::move(one)).ok());
  auto found = catalogue->find("a");
  two.keep = keep;
  EXPECT_EQ(keep.use_count(), 4);
  EXPECT_EQ(catalogue->replace(std::move(two))->source, found->source);
  EXPECT_EQ(keep.use_count(), 3) << "the catalogue's new one, and the old one that was found";
  found.reset();
  EXPECT_TRUE(catalogue->remove("a"));
  EXPECT_EQ(keep.use_count(), 1);
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
      if (replace && catalogue->replace(entry(name, path))) {
        EXPECT_NE(known, naive.end());
      } else {
        EXPECT_EQ(catalogue->add(entry(name, path)).ok(), known == naive.end() || known->second == path);
      }
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
