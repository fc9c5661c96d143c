// SPDX-License-Identifier: Apache-2.0
// A real tier with its link's thread, whose link goes as the test lets it.
#include "engine/emulated/emulated_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "device/emulated/link_test_util.h"
#include "engine/emulated/made_adapter_test_util.h"
#include "sim/fake_model.h"

namespace loralei {
namespace {

using namespace testing_support;
using Made = std::shared_ptr<const Adapter>;

constexpr int64_t kUnit = RangeAllocator::kAlign;
constexpr int32_t kLayers = kMadeShape.layers;

class EmulatedTierTest : public testing::Test {
 protected:
  void open(int64_t units) {
    tier_ =
        EmulatedTier::create({.bytes_max = units * kUnit, .shape = kMadeShape, .poison = true}, hand_.link(), clock_)
            .value();
    tier_->on_copies({.comes =
                          [this](const Adapter& copy, std::shared_ptr<const Arrivals> arrivals) {
                            there_[copy.version] = &copy;
                            arrivals_[copy.version] = std::move(arrivals);
                          },
                      .leaves = [this](AdapterVersionId version) { EXPECT_EQ(there_.erase(version), 1u); }});
    tier_->on_upload([this](UploadDone&& done) {
      const std::lock_guard lock(mutex_);
      told_.push_back(done.version);
    });
  }
  // Until so many ends were told.
  void wait_told(size_t count) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (told_.size() >= count) return;
      }
      std::this_thread::yield();
    }
  }
  Result<bool> hold(const std::vector<Made>& adapters) {
    std::vector<const Adapter*> wanted;
    for (const Made& adapter : adapters) wanted.push_back(adapter.get());
    return tier_->hold(wanted);
  }
  bool arrived(const Made& adapter) { return tier_->arrived(adapter->version).value(); }
  int32_t layers_there(const Made& adapter) const { return arrivals_.at(adapter->version)->there(); }
  // What steps would read of it is what the adapter is.
  void expect_whole(const Made& adapter) {
    ASSERT_TRUE(there_.contains(adapter->version) && arrivals_.at(adapter->version)->whole());
    for (const TwinArray& array : twin_arrays(*adapter, *there_.at(adapter->version))) EXPECT_TRUE(same(array));
  }

  SteadyClock clock_;
  LinkHand hand_;
  Prng random_{21};
  AdapterMaker maker_{random_};
  std::mutex mutex_;
  std::vector<AdapterVersionId> told_;
  std::map<AdapterVersionId, const Adapter*> there_;  // or on their way
  std::map<AdapterVersionId, std::shared_ptr<const Arrivals>> arrivals_;
  std::unique_ptr<EmulatedTier> tier_;
};

TEST_F(EmulatedTierTest, LayersArriveOneAfterTheOtherAndTheCopyWhenItIsWhole) {
  open(8);
  const Made adapter = maker_.plain(1, 2);
  EXPECT_EQ(tier_->bytes_of(*adapter), 2 * kUnit);
  ASSERT_TRUE(hold({adapter}).value());
  EXPECT_TRUE(tier_->has(adapter->version));
  hand_.wait_asked(1);
  EXPECT_EQ(layers_there(adapter), 0);
  const auto through = tier_->on_its_way(adapter->version)->bytes_through;
  ASSERT_EQ(std::ssize(through), kLayers + 1);
  EXPECT_EQ(tier_->on_its_way(adapter->version)->bytes_left(kLayers), through.back());
  hand_.let(1);
  hand_.wait_asked(2);
  EXPECT_EQ(layers_there(adapter), 1);
  EXPECT_EQ(tier_->on_its_way(adapter->version)->bytes_left(0), 0);
  EXPECT_EQ(tier_->on_its_way(adapter->version)->bytes_left(kLayers), through.back() - through.front());
  for (const TwinArray& array : twin_arrays(*adapter, *there_.at(adapter->version)))
    EXPECT_EQ(same(array), array.layer == 0) << "layer " << array.layer;
  EXPECT_FALSE(arrived(adapter));
  hand_.let(1);
  wait_told(1);
  EXPECT_TRUE(arrived(adapter));
  EXPECT_EQ(tier_->on_its_way(adapter->version)->bytes_left(kLayers), 0);
  expect_whole(adapter);
  EXPECT_EQ(tier_->stats().uploads, 1);
  EXPECT_EQ(tier_->stats().upload_bytes, 2 * kUnit);
  tier_->check();
}

TEST_F(EmulatedTierTest, WhatComesFirstIsCounted) {
  open(8);
  const Made one = maker_.plain(1, 2), two = maker_.plain(2, 1);
  ASSERT_TRUE(hold({one}).value() && hold({two}).value());
  hand_.let(1);
  hand_.wait_asked(2);
  const AdapterOnItsWay first = *tier_->on_its_way(one->version), second = *tier_->on_its_way(two->version);
  EXPECT_EQ(first.bytes_before, 0);
  EXPECT_EQ(second.bytes_before, first.bytes_left(kLayers));
  EXPECT_EQ(second.bytes_left(0), second.bytes_before + second.bytes_through[0]);
  hand_.let(1);
  wait_told(1);
  EXPECT_TRUE(arrived(one));
  EXPECT_EQ(tier_->on_its_way(two->version)->bytes_before, 0);
}

TEST_F(EmulatedTierTest, AnAdapterMayLeaveHostMemoryWhileItIsOnItsWay) {
  open(8);
  Made adapter = maker_.plain(1, 1);
  const Made same_bytes = [&] {  // of the same bytes, elsewhere
    random_ = Prng(21);
    return maker_.plain(1, 1);
  }();
  ASSERT_TRUE(hold({adapter}).value());
  const std::weak_ptr<const void> storage = adapter->storage;
  adapter.reset();
  EXPECT_FALSE(storage.expired()) << "the upload shares it";
  hand_.let(2);
  wait_told(1);
  EXPECT_TRUE(arrived(same_bytes));
  EXPECT_TRUE(storage.expired());
  expect_whole(same_bytes);
}

TEST_F(EmulatedTierTest, ForgottenOnItsWayItIsNeverThere) {
  open(8);
  const Made gone = maker_.plain(1, 1), next = maker_.plain(2, 1);
  ASSERT_TRUE(hold({gone}).value());
  tier_->release(gone->version);
  tier_->forget(gone->version);
  EXPECT_FALSE(tier_->has(gone->version));
  ASSERT_TRUE(hold({next}).value());
  EXPECT_EQ(tier_->bytes(), 2 * kUnit);
  hand_.let(4);
  wait_told(2);
  EXPECT_TRUE(arrived(next));
  EXPECT_EQ(there_.size(), 1u);
  EXPECT_EQ(tier_->bytes(), kUnit);
  expect_whole(next);
  tier_->check();
}

TEST_F(EmulatedTierTest, AFailedCopyIsSaidToItsHoldersAndTriedAgainForTheNext) {
  open(2);
  const Made adapter = maker_.plain(1, 2);
  ASSERT_TRUE(hold({adapter}).value());
  hand_.let(1);  // its first layer comes
  hand_.wait_asked(2);
  hand_.fail(internal_error("the cable is out"));
  hand_.let(1);
  wait_told(1);
  const Result<bool> there = tier_->arrived(adapter->version);
  ASSERT_FALSE(there.ok());
  EXPECT_EQ(there.error().message, "the cable is out");
  tier_->release(adapter->version);
  EXPECT_EQ(tier_->bytes(), 0);
  EXPECT_TRUE(there_.empty());
  hand_.fail({});
  hand_.let(2);
  ASSERT_TRUE(hold({adapter}).value());
  wait_told(2);
  EXPECT_TRUE(arrived(adapter));
  EXPECT_EQ(tier_->stats().uploads, 1);
  expect_whole(adapter);
}

// What is not there is NaN, and what has left is, too.
TEST_F(EmulatedTierTest, ARangeThatIsOnItsWayIsPoison) {
  open(2);
  const auto poisoned = [](const TwinArray& array) {
    return std::all_of(array.copy, array.copy + array.bytes, [](std::byte byte) { return byte == std::byte{0xFF}; });
  };
  const Made first = maker_.plain(1, 2), second = maker_.plain(2, 2);
  hand_.let(2);
  ASSERT_TRUE(hold({first}).value());
  wait_told(1);
  ASSERT_TRUE(arrived(first));
  const std::vector<TwinArray> arrays = twin_arrays(*first, *there_.at(first->version));
  tier_->release(first->version);
  ASSERT_TRUE(hold({second}).value()) << "in the place of the first";
  hand_.wait_asked(3);
  for (const TwinArray& array : arrays) EXPECT_TRUE(poisoned(array));
}

TEST_F(EmulatedTierTest, GoesWithUploadsUnderWay) {
  open(8);
  Made one = maker_.plain(1, 1), two = maker_.plain(2, 1);
  ASSERT_TRUE(hold({one, two}).value());
  hand_.let(1);
  hand_.wait_asked(2);
  const std::weak_ptr<const void> storage = one->storage;
  tier_.reset();
  one.reset();
  EXPECT_TRUE(storage.expired());
}

// Adapters of equal size, so that no range is ever in pieces: then the tier answers as
// FakeTier does, which has no memory. Uploads end one by one, in their order.
class EmulatedTierTwin : public EmulatedTierTest {
 protected:
  static constexpr int64_t kPlaces = 5;

  void begin_twin() {
    open(kPlaces);
    fake_ = std::make_unique<sim::FakeTier>(kPlaces * kUnit);
    for (uint64_t version = 1; version <= 9; ++version) adapters_.push_back(maker_.plain(version, 1));
    next_version_ = 10;
  }
  void hold_some() {
    std::set<size_t> chosen;
    for (uint64_t count = 1 + random_.below(3); count > 0; --count) chosen.insert(random_.below(adapters_.size()));
    std::vector<Made> wanted;
    for (const size_t index : chosen) wanted.push_back(adapters_[index]);
    std::vector<const Adapter*> pointers;
    for (const Made& adapter : wanted) pointers.push_back(adapter.get());
    for (const Made& adapter : wanted)
      if (!fake_->has(adapter->version)) missing_.push_back(adapter->version);
    const Result<bool> held = hold(wanted), fake_held = fake_->hold(pointers);
    ASSERT_TRUE(held.ok() && fake_held.ok());
    ASSERT_EQ(*held, *fake_held);
    if (*held) {
      for (const Made& adapter : wanted) ++holds_[adapter->version];
      on_their_way_.insert(on_their_way_.end(), missing_.begin(), missing_.end());
    }
    refused_ += *held ? 0 : 1;
    missing_.clear();
  }
  void end_one() {
    if (on_their_way_.empty()) return;
    const bool well = random_.below(5) != 0;
    hand_.fail(well ? std::nullopt : std::optional(internal_error("the copy was refused")));
    hand_.let(well ? 2 : 1);
    wait_told(++ended_);
    ASSERT_TRUE(fake_->end_upload(well, on_their_way_.front()));
    on_their_way_.erase(on_their_way_.begin());
    failed_ += well ? 0 : 1;
  }
  void release_one() {
    for (auto& [version, count] : holds_) {
      if (count == 0 || random_.below(3) == 0) continue;
      --count;
      tier_->release(version);
      fake_->release(version);
      return;
    }
  }
  // It leaves host memory, and another comes.
  void replace_one() {
    Made& adapter = adapters_[random_.below(adapters_.size())];
    if (holds_[adapter->version] > 0) return;
    tier_->forget(adapter->version);
    fake_->forget(adapter->version);
    adapter = maker_.plain(next_version_++, 1);
  }
  void drop_one() {
    const AdapterVersionId version = adapters_[random_.below(adapters_.size())]->version;
    tier_->drop_unused(version);
    fake_->drop_unused(version);
  }
  void choose_anew() {
    const uint64_t keep = random_.below(4);
    const auto choose = [keep](std::vector<AdapterVersionId>& idle) {
      std::erase_if(idle, [&](AdapterVersionId version) { return version.value % 4 == keep; });
      std::reverse(idle.begin(), idle.end());
    };
    tier_->choose_leaving(keep == 0 ? DeviceTier::ChooseLeaving() : choose);
    fake_->choose_leaving(keep == 0 ? DeviceTier::ChooseLeaving() : choose);
  }
  void compare() {
    tier_->drop_unused({next_version_});  // nobody's, but what has ended is looked at
    tier_->check();
    for (const Made& adapter : adapters_) {
      ASSERT_EQ(tier_->has(adapter->version), fake_->has(adapter->version)) << adapter->version.value;
      if (holds_[adapter->version] == 0) continue;
      const Result<bool> there = tier_->arrived(adapter->version), fake_there = fake_->arrived(adapter->version);
      ASSERT_EQ(there.ok(), fake_there.ok());
      if (!there.ok()) {
        EXPECT_EQ(there.error().message, fake_there.error().message);
        continue;
      }
      ASSERT_EQ(*there, *fake_there);
      if (*there) expect_whole(adapter);
    }
    ASSERT_EQ(tier_->bytes(), fake_->bytes());
  }

  std::unique_ptr<sim::FakeTier> fake_;
  std::vector<Made> adapters_;
  std::map<AdapterVersionId, int> holds_;
  std::vector<AdapterVersionId> missing_, on_their_way_;
  size_t ended_ = 0;
  uint64_t next_version_ = 0;
  int refused_ = 0, failed_ = 0;
};

TEST_F(EmulatedTierTwin, RandomOperationsAreThoseOfTheFakeTier) {
  const uint64_t seed = 23;
  SCOPED_TRACE("seed 23");
  random_ = Prng(seed);
  begin_twin();
  for (int step = 0; step < 8000 && !HasFailure(); ++step) {
    switch (random_.below(12)) {
      case 0:
      case 1:
      case 2:
        hold_some();
        break;
      case 3:
      case 4:
      case 5:
        end_one();
        break;
      case 6:
      case 7:
      case 8:
        release_one();
        break;
      case 9:
        replace_one();
        break;
      case 10:
        drop_one();
        break;
      default:
        choose_anew();
        break;
    }
    compare();
  }
  EXPECT_GT(refused_, 50);
  EXPECT_GT(failed_, 20);
  EXPECT_GT(tier_->stats().uploads, 300);
}

}  // namespace
}  // namespace loralei
