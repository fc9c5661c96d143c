// SPDX-License-Identifier: Apache-2.0
#include "engine/emulated/adapter_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kUnit = RangeAllocator::kAlign;

AdapterVersionId id(uint64_t version) { return {version}; }

// All that a test wants of one adapter.
struct Known {
  int64_t bytes = 0;
  int64_t offset = -1;  // -1: absent
  bool there = false;
  int holds = 0;
};

class AdapterPlacesTest : public testing::Test {
 protected:
  explicit AdapterPlacesTest(int64_t units = 16) : places_(units * kUnit) {
    places_.on_leave([this](AdapterVersionId version) {
      Known& known = known_[version];
      EXPECT_TRUE(known.offset >= 0 && known.there && known.holds == 0) << "who may not leave";
      known.offset = -1;
      known.there = false;
      left_.push_back(version);
    });
  }

  Result<bool> hold(const std::vector<uint64_t>& versions) {
    std::vector<AdapterPlaces::Wanted> wanted;
    for (const uint64_t version : versions) wanted.push_back({id(version), known_.at(id(version)).bytes});
    left_.clear();
    const Result<bool> held = places_.hold(wanted, placed_);
    places_.check();
    if (!held.ok() || !*held) {
      EXPECT_TRUE(placed_.empty());
      return held;
    }
    for (const auto& [version, offset] : placed_) {
      EXPECT_EQ(known_.at(version).offset, -1);
      known_.at(version).offset = offset;
    }
    for (const uint64_t version : versions) {
      EXPECT_GE(known_.at(id(version)).offset, 0);
      ++known_.at(id(version)).holds;
    }
    return held;
  }
  void end(uint64_t version) {
    known_.at(id(version)).there = true;
    places_.ended(id(version), {});
  }
  void release(uint64_t version) {
    --known_.at(id(version)).holds;
    places_.release(id(version));
  }
  void bring(uint64_t version, int64_t units) {
    known_[id(version)].bytes = units * kUnit;
    ASSERT_TRUE(hold({version}).value());
    end(version);
    release(version);
  }
  void expect_disjoint() const {
    std::map<int64_t, int64_t> ranges;
    for (const auto& [version, known] : known_)
      if (known.offset >= 0) ranges[known.offset] = known.offset + known.bytes;
    int64_t at = 0;
    for (const auto& [begin, end] : ranges) {
      ASSERT_GE(begin, at);
      at = end;
    }
    ASSERT_LE(at, places_.bytes_max());
  }

  AdapterPlaces places_;
  std::map<AdapterVersionId, Known> known_;
  std::vector<AdapterPlaces::Placed> placed_;
  std::vector<AdapterVersionId> left_;
};

TEST_F(AdapterPlacesTest, TheOneReleasedLongestAgoGivesWayAndNobodyInVain) {
  for (const uint64_t version : {1, 2, 3, 4}) bring(version, 4);
  ASSERT_TRUE(hold({1}).value());
  release(1);  // used last
  known_[id(5)].bytes = 4 * kUnit;
  EXPECT_TRUE(hold({5}).value());
  EXPECT_EQ(left_, std::vector{id(2)});
  known_[id(6)].bytes = 13 * kUnit;
  EXPECT_FALSE(hold({6}).value());
  EXPECT_TRUE(left_.empty());
  EXPECT_TRUE(places_.has(id(1)) && places_.has(id(3)) && places_.has(id(4)));
}

TEST_F(AdapterPlacesTest, WhoMayLeaveIsForOthersToSay) {
  for (const uint64_t version : {1, 2, 3, 4}) bring(version, 4);
  places_.choose_leaving([](std::vector<AdapterVersionId>& idle) {
    EXPECT_EQ(idle, (std::vector{id(1), id(2), id(3), id(4)}));
    idle = {id(3)};
  });
  known_[id(5)].bytes = 4 * kUnit;
  EXPECT_TRUE(hold({5}).value());
  EXPECT_EQ(left_, std::vector{id(3)});
  known_[id(6)].bytes = 8 * kUnit;
  places_.choose_leaving([](std::vector<AdapterVersionId>& idle) { idle = {id(4)}; });
  EXPECT_FALSE(hold({6}).value()) << "the others are to stay";
}

// 1..4 fill the memory. What is left of them lies in pieces, and the wanted one has its
// own among them.
TEST_F(AdapterPlacesTest, RangesInPiecesAreLaidAnewWhereNobodyElseStays) {
  for (const uint64_t version : {1, 2, 3, 4}) bring(version, 4);
  for (const uint64_t version : {1, 3}) places_.drop_unused(id(version));
  ASSERT_TRUE(hold({2}).value());
  known_[id(5)].bytes = 11 * kUnit;
  EXPECT_FALSE(hold({5}).value()) << "2 is held by somebody else";
  release(2);
  left_.clear();
  known_[id(6)].bytes = 12 * kUnit;
  ASSERT_TRUE(hold({2, 6}).value());
  EXPECT_EQ(placed_.size(), 2u) << "both come anew";
}

TEST_F(AdapterPlacesTest, OneThatFailedGoesWithItsLastHold) {
  known_[id(1)].bytes = kUnit;
  ASSERT_TRUE(hold({1}).value());
  ASSERT_TRUE(hold({1}).value());
  known_[id(1)].there = true;  // for on_leave
  places_.ended(id(1), internal_error("torn"));
  for (int holder = 0; holder < 2; ++holder) {
    const Result<bool> there = places_.arrived(id(1));
    ASSERT_FALSE(there.ok());
    EXPECT_EQ(there.error().message, "torn");
    EXPECT_TRUE(places_.has(id(1)));
    release(1);
  }
  EXPECT_FALSE(places_.has(id(1)));
  EXPECT_EQ(places_.bytes(), 0);
}

TEST_F(AdapterPlacesTest, WhatIsForgottenOnItsWayGoesWhenItHasCome) {
  known_[id(1)].bytes = kUnit;
  ASSERT_TRUE(hold({1}).value());
  release(1);
  places_.forget(id(1));
  EXPECT_FALSE(places_.has(id(1)));
  EXPECT_EQ(places_.bytes(), kUnit) << "the link writes there";
  end(1);
  EXPECT_EQ(places_.bytes(), 0);
}

TEST_F(AdapterPlacesTest, MoreThanThereIsIsRefusedWithNumbers) {
  known_[id(1)].bytes = 9 * kUnit;
  known_[id(2)].bytes = 8 * kUnit;
  const Result<bool> held = hold({1, 2});
  ASSERT_FALSE(held.ok());
  EXPECT_EQ(held.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(held.error().message.find("4.25 KiB"), std::string::npos) << held.error().message;
  EXPECT_NE(held.error().message.find("--adapter-memory"), std::string::npos) << held.error().message;
}

// Any operations: what is held stays, ranges never overlap, and nobody is refused room
// that is there.
TEST_F(AdapterPlacesTest, RandomOperationsKeepEveryPromise) {
  const uint64_t seed = 17;
  SCOPED_TRACE("seed 17");
  Prng random(seed);
  for (uint64_t version = 1; version <= 12; ++version)
    known_[id(version)].bytes = (1 + static_cast<int64_t>(random.below(7))) * kUnit;
  int refused = 0, held_times = 0;
  for (int step = 0; step < 20000 && !HasFailure(); ++step) {
    const uint64_t version = 1 + random.below(12);
    Known& known = known_[id(version)];
    switch (random.below(6)) {
      case 0: {
        std::set<uint64_t> wanted = {version};
        for (uint64_t more = random.below(3); more > 0; --more) wanted.insert(1 + random.below(12));
        int64_t bytes = 0, stay = 0;
        for (const uint64_t one : wanted) bytes += known_[id(one)].bytes;
        for (const auto& [other, is] : known_)
          if (!wanted.contains(other.value) && is.offset >= 0 && (is.holds > 0 || !is.there)) stay += is.bytes;
        const Result<bool> held = hold({wanted.begin(), wanted.end()});
        ASSERT_EQ(held.ok(), bytes <= places_.bytes_max());
        if (!held.ok()) break;
        if (bytes + stay > places_.bytes_max()) {
          EXPECT_FALSE(*held);
        }
        ++(*held ? held_times : refused);
        break;
      }
      case 1:
      case 2:
        if (known.offset >= 0 && !known.there) end(version);
        break;
      case 3:
      case 4:
        if (known.holds > 0) release(version);
        break;
      default:
        if (known.holds == 0 && known.there)
          random.below(2) == 0 ? places_.forget(id(version)) : places_.drop_unused(id(version));
        break;
    }
    places_.check();
    expect_disjoint();
    for (const auto& [other, is] : known_) {
      ASSERT_EQ(places_.has(other), is.offset >= 0);
      if (is.holds > 0) {
        ASSERT_EQ(places_.arrived(other).value(), is.there);
      }
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(held_times, 500);
  // All have gone: whatever fits is there at once.
  for (auto& [version, known] : known_) {
    if (known.offset >= 0 && !known.there) end(version.value);
    while (known.holds > 0) release(version.value);
  }
  for (const auto& [version, known] : known_) {
    ASSERT_TRUE(hold({version.value}).value());
    if (!known.there) end(version.value);
    release(version.value);
  }
}

}  // namespace
}  // namespace loralei
