// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/prng.h"
#include "store/version_name.h"

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
  EXPECT_EQ(catalogue->replace(entry("a", "/3"))->at(0).path, "/1");
  EXPECT_EQ(catalogue->find("a")->path, "/3");
  EXPECT_FALSE(catalogue->replace(entry("c", "/3")));
  EXPECT_FALSE(catalogue->find("c"));
  EXPECT_EQ(catalogue->at(0)->name, "a");  // replaced in place
  EXPECT_FALSE(catalogue->at(2));
  EXPECT_EQ(catalogue->remove("a").size(), 1u);
  EXPECT_TRUE(catalogue->remove("a").empty());
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
  EXPECT_EQ(catalogue->replace(std::move(two))->at(0).source, found->source);
  EXPECT_EQ(keep.use_count(), 3) << "the catalogue's new one, and the old one that was found";
  found.reset();
  EXPECT_EQ(catalogue->remove("a").size(), 1u);
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
      EXPECT_EQ(catalogue->remove(name).size(), known != naive.end() ? 1u : 0u);
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

CatalogueEntry version(const std::string& name, int64_t number) {
  CatalogueEntry one = entry(name, "/" + std::to_string(number));
  one.number = number;
  one.source = {static_cast<uint64_t>(number)};
  return one;
}

std::string numbers(const std::vector<CatalogueEntry>& entries) {
  std::string text;
  for (const CatalogueEntry& one : entries) text += (text.empty() ? "" : " ") + std::to_string(one.number);
  return text;
}

TEST(Catalogue, ANameMeansItsNewestVersionAndTheKeptOnesHaveNames) {
  auto catalogue = make_memory_catalogue(3);
  EXPECT_FALSE(catalogue->replace(version("a", 1)));
  ASSERT_TRUE(catalogue->add(version("a", 1)).ok());
  ASSERT_TRUE(catalogue->add(entry("plain", "/p")).ok());
  EXPECT_EQ(numbers(*catalogue->replace(version("a", 2))), "");
  EXPECT_EQ(numbers(*catalogue->replace(version("a", 4))), "");
  EXPECT_EQ(numbers(*catalogue->replace(version("a", 5))), "1");
  EXPECT_EQ(numbers(*catalogue->replace(version("a", 3))), "2") << "one that came late is older";
  EXPECT_EQ(numbers(catalogue->versions("a")), "3 4 5");
  EXPECT_EQ(catalogue->find("a")->number, 5);
  EXPECT_EQ(catalogue->find("a@4")->number, 4);
  for (const char* none :
       {"a@2", "a@6", "a@0", "a@", "a@04", "a@4x", "@4", "b@4", "plain@1", "plain@0", "a@99999999999999999999999999"})
    EXPECT_FALSE(catalogue->find(none)) << none;
  EXPECT_EQ(shown_name(*catalogue, *catalogue->find("a@4")), "a@4");
  EXPECT_EQ(shown_name(*catalogue, *catalogue->find("a@5")), "a");
  EXPECT_EQ(shown_name(*catalogue, *catalogue->find("plain")), "plain");
  EXPECT_EQ(catalogue->size(), 2u);
  EXPECT_EQ(catalogue->at(0)->number, 5);
  EXPECT_EQ(catalogue->list()[0].number, 5);
  EXPECT_TRUE(catalogue->remove("a@2").empty());
  EXPECT_EQ(numbers(catalogue->remove("a@5")), "5");
  EXPECT_EQ(catalogue->find("a")->number, 4) << "the next newest";
  EXPECT_EQ(numbers(catalogue->remove("a@3")), "3");
  EXPECT_EQ(numbers(catalogue->remove("a@4")), "4");
  EXPECT_FALSE(catalogue->find("a"));
  EXPECT_EQ(catalogue->size(), 1u);
  EXPECT_EQ(catalogue->at(0)->name, "plain");
}

TEST(Catalogue, WhatHasNoNumberIsNotKeptBesideVersions) {
  auto catalogue = make_memory_catalogue(3);
  ASSERT_TRUE(catalogue->add(entry("a", "/folder")).ok());
  EXPECT_EQ(catalogue->replace(version("a", 1))->at(0).path, "/folder");
  EXPECT_EQ(numbers(*catalogue->replace(version("a", 2))), "");
  EXPECT_EQ(numbers(*catalogue->replace(entry("a", "/folder"))), "1 2");
}

TEST(Catalogue, NumbersAreNeverGivenAgain) {
  auto catalogue = make_memory_catalogue();
  EXPECT_EQ(catalogue->new_number("a"), 1);
  EXPECT_EQ(catalogue->new_number("a"), 2);
  EXPECT_EQ(catalogue->new_number("kept"), 1);
  ASSERT_TRUE(catalogue->add(version("kept", 1)).ok());
  // So many names come and go that those that are gone are not remembered one by one.
  for (size_t i = 0; i < 2 * kMaxAdapters; ++i) (void)catalogue->new_number("n" + std::to_string(i));
  EXPECT_GT(catalogue->new_number("a"), 2);
  EXPECT_EQ(catalogue->new_number("kept"), 2);
}

TEST(Catalogue, VersionNames) {
  EXPECT_EQ(parse_version_name("a@3")->name, "a");
  EXPECT_EQ(parse_version_name("a@3")->number, 3);
  EXPECT_EQ(parse_version_name("a@b@12")->name, "a@b");
  EXPECT_EQ(parse_version_name("@1")->name, "");
  for (const char* none : {"a", "a@", "a@b", "a@3b", "a@-1", "@", "", "3"})
    EXPECT_FALSE(parse_version_name(none)) << none;
  for (const char* reserved : {"a@0", "a@03", "a@1234567890123456789"})
    EXPECT_EQ(parse_version_name(reserved)->number, 0) << reserved;
  EXPECT_EQ(version_name("a", 7), "a@7");
}

// Random versions that come in any order and go, beside a map of their numbers.
TEST(Catalogue, AgreesWithANaiveListOfVersions) {
  for (const int64_t keep : {1, 2, 5}) {
    const uint64_t seed = 90 + static_cast<uint64_t>(keep);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    auto catalogue = make_memory_catalogue(keep);
    std::map<std::string, std::map<int64_t, uint64_t>> naive;  // sources
    std::map<std::string, int64_t> last;
    for (int i = 0; i < 3000; ++i) {
      const std::string name = "n" + std::to_string(prng.below(4));
      if (const uint64_t what = prng.below(8); what == 0) {
        EXPECT_EQ(catalogue->remove(name).size(), naive[name].size());
        naive[name].clear();
      } else if (what == 1) {
        const int64_t number = std::max<int64_t>(0, last[name] - static_cast<int64_t>(prng.below(8)));
        EXPECT_EQ(catalogue->remove(version_name(name, number)).size(), naive[name].erase(number));
      } else {
        CatalogueEntry one = version(name, catalogue->new_number(name));
        one.source = catalogue->new_source();
        ASSERT_EQ(one.number, ++last[name]);
        auto& versions = naive[name];
        versions[one.number] = one.source.value;
        if (versions.size() == 1) {
          ASSERT_TRUE(catalogue->add(one).ok());
        } else {
          const auto left = catalogue->replace(one);
          ASSERT_TRUE(left);
          const bool too_many = versions.size() > static_cast<size_t>(keep);
          ASSERT_EQ(left->size(), too_many ? 1u : 0u);
          if (too_many) {
            EXPECT_EQ(left->at(0).number, versions.begin()->first);
            versions.erase(versions.begin());
          }
        }
      }
      size_t names = 0;
      for (const auto& [known, versions] : naive) {
        names += versions.empty() ? 0 : 1;
        const auto newest = catalogue->find(known);
        ASSERT_EQ(newest.has_value(), !versions.empty());
        if (newest) {
          EXPECT_EQ(newest->source.value, versions.rbegin()->second);
        }
        for (int64_t number = std::max<int64_t>(0, last[known] - 20); number <= last[known] + 1; ++number) {
          const auto found = catalogue->find(version_name(known, number));
          ASSERT_EQ(found.has_value(), versions.contains(number)) << known << "@" << number;
          if (found) {
            EXPECT_EQ(found->source.value, versions.at(number));
          }
        }
      }
      ASSERT_EQ(catalogue->size(), names);
    }
  }
}

}  // namespace
}  // namespace loralei
