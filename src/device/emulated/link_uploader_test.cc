// SPDX-License-Identifier: Apache-2.0
#include "device/emulated/link_uploader.h"

#include <gtest/gtest.h>

#include <chrono>

#include "device/emulated/link_test_util.h"

namespace loralei {
namespace {

using testing_support::LinkHand;

// Three layers of 4, 0 and 8 bytes.
struct Made {
  std::shared_ptr<std::vector<std::byte>> from = std::make_shared<std::vector<std::byte>>();
  std::vector<std::byte> to = std::vector<std::byte>(12);
  std::shared_ptr<Arrivals> layers = std::make_shared<Arrivals>(3);

  LinkUpload upload(uint64_t id) {
    for (int i = 0; i < 12; ++i) from->push_back(static_cast<std::byte>(id * 16 + static_cast<uint64_t>(i)));
    const auto part = [&](int at, int bytes) { return LinkPart{from->data() + at, to.data() + at, bytes}; };
    return {.id = id,
            .parts = {part(0, 3), part(3, 1), part(4, 8)},
            .layer_parts = {2, 0, 1},
            .keeps = from,
            .layers_there = layers};
  }
  bool whole() const { return to == *from; }
};

class LinkUploaderTest : public testing::Test {
 protected:
  void SetUp() override { uploader_ = LinkUploader::create(hand_.link(), clock_).value(); }
  // The next end.
  LinkUploadEnd end() {
    while (ended_.empty()) {
      uploader_->poll(ended_);
      std::this_thread::yield();
    }
    LinkUploadEnd first = std::move(ended_.front());
    ended_.erase(ended_.begin());
    return first;
  }

  SteadyClock clock_;
  LinkHand hand_;
  std::vector<LinkUploadEnd> ended_;
  std::unique_ptr<LinkUploader> uploader_;
};

TEST_F(LinkUploaderTest, LayersArriveInOrderAndAreCounted) {
  Made made;
  uploader_->start(made.upload(1));
  hand_.wait_asked(1);
  EXPECT_EQ(made.layers->there(), 0);
  hand_.let(1);
  hand_.wait_asked(2);
  EXPECT_EQ(made.layers->there(), 2) << "a layer without bytes waits for nothing";
  EXPECT_TRUE(std::equal(made.to.begin(), made.to.begin() + 4, made.from->begin()));
  EXPECT_EQ(made.to[4], std::byte{0});
  hand_.let(1);
  const LinkUploadEnd first = end();
  EXPECT_TRUE(first.status.ok());
  EXPECT_EQ(first.id, 1u);
  EXPECT_TRUE(made.layers->whole());
  EXPECT_TRUE(made.whole());
  EXPECT_EQ(hand_.asked(), 2);
}

TEST_F(LinkUploaderTest, UploadsEndInTheirOrderAndAFailureIsOnesOwn) {
  Made one, two, three;
  hand_.fail(internal_error("the cable is out"));
  uploader_->start(one.upload(1));
  uploader_->start(two.upload(2));
  uploader_->start(three.upload(3));
  hand_.let(1);
  const LinkUploadEnd first = end();
  EXPECT_EQ(first.id, 1u);
  ASSERT_FALSE(first.status.ok());
  EXPECT_EQ(first.status.error().message, "the cable is out");
  EXPECT_EQ(one.layers->there(), 0);
  EXPECT_EQ(one.layers->status().error().message, "the cable is out");
  EXPECT_EQ(one.from.use_count(), 1) << "its bytes are no longer kept";
  hand_.fail({});
  hand_.let(4);
  EXPECT_EQ(end().id, 2u);
  EXPECT_EQ(end().id, 3u);
  EXPECT_TRUE(two.whole() && three.whole());
}

// Who starts an upload may let go of the bytes at once.
TEST_F(LinkUploaderTest, WhatIsOnItsWayIsKeptAndNoLonger) {
  Made made;
  uploader_->start(made.upload(1));
  const std::weak_ptr<const std::vector<std::byte>> bytes = made.from;
  const std::vector<std::byte> copy = *made.from;
  made.from.reset();
  EXPECT_FALSE(bytes.expired());
  hand_.let(2);
  EXPECT_TRUE(end().status.ok());
  EXPECT_TRUE(bytes.expired()) << "dropped before the end is told";
  EXPECT_EQ(made.to, copy);
}

TEST_F(LinkUploaderTest, TellsWhoWantsToKnow) {
  Made one, two;
  std::atomic<uint64_t> told = 0;
  uploader_->on_end([&](const LinkUploadEnd& ended) { told = ended.id; });
  uploader_->start(one.upload(1));
  hand_.let(2);
  EXPECT_EQ(end().id, 1u);
  while (told == 0) std::this_thread::yield();
  EXPECT_EQ(told, 1u);
  uploader_->on_end({});
  uploader_->start(two.upload(2));
  hand_.let(2);
  EXPECT_EQ(end().id, 2u);
  EXPECT_EQ(told, 1u);
}

TEST_F(LinkUploaderTest, GoesWhileTheLinkIsStalled) {
  Made one, two;
  std::atomic<bool> told = false;
  uploader_->on_end([&](const LinkUploadEnd&) { told = true; });
  uploader_->start(one.upload(1));
  uploader_->start(two.upload(2));
  hand_.wait_asked(1);
  uploader_.reset();
  EXPECT_FALSE(told);
  EXPECT_EQ(one.from.use_count() + two.from.use_count(), 2) << "nothing is kept any more";
  EXPECT_EQ(one.to, std::vector<std::byte>(12));
}

}  // namespace
}  // namespace loralei
