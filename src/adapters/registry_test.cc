// SPDX-License-Identifier: Apache-2.0
#include "adapters/registry.h"

#include <gtest/gtest.h>

#include "adapters/registry_world.h"
#include "base/prng.h"

namespace loralei {
namespace {

using namespace testing_support;

TEST(Registry, ColdAdapterIsLoadedOnFirstUseAndKept) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.registry->add(1, spec_of("a", "/a"));
  ASSERT_TRUE(world.replies().at(0).status.ok());
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(pins[0]->bytes, 1000);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 1000);
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(world.registry->counters().loads, 1u);
  EXPECT_EQ(world.use("unknown", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
}

TEST(Registry, OtherFilesAreAnotherSource) {
  RegistryWorld world;
  world.put("/a", 1000, 1);
  world.put("/b", 1000, 2);
  std::vector<AdapterPin> pins;
  Error error;
  world.registry->add(1, spec_of("a", "/a"));
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  (void)world.replies();
  world.registry->add(2, spec_of("a", "/b"));
  world.registry->load(3, spec_of("a", "/b"), true, {});
  const auto replies = world.replies();
  ASSERT_EQ(replies.size(), 2u);
  for (const RegistryReply& reply : replies) {
    ASSERT_FALSE(reply.status.ok());
    EXPECT_NE(reply.status.error().message.find("is registered from /a"), std::string::npos);
  }
  EXPECT_TRUE(world.jobs.empty());
}

TEST(Registry, WhatIsDoubtfulOfAnAdapterIsWarnedOf) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.put("/b", 1000);
  world.files["/b"].doubts = {"It was made for another base.", "It changes nothing."};
  std::vector<AdapterPin> pins;
  Error error;
  for (const char* name : {"a", "b"}) {
    world.registry->add(1, spec_of(name, std::string("/") + name));
    ASSERT_EQ(world.use(name, pins, error), AcquireOutcome::kReady);
    EXPECT_EQ(world.log.warnings.size(), *name == 'a' ? 0u : 2u);
  }
  ASSERT_EQ(world.log.warnings.size(), 2u);
  EXPECT_EQ(world.log.warnings[0], "adapter in doubt adapter=b: It was made for another base.");
  EXPECT_NE(world.log.warnings[1].find("It changes nothing."), std::string::npos);
}

TEST(Registry, IdleAdaptersGoInTheirOrderAndTheOthersStay) {
  RegistryWorld world;
  std::vector<AdapterPin> in_use, pins;
  Error error;
  const std::vector<std::string> names = {"used", "pinned", "first", "second", "third"};
  for (size_t i = 0; i < names.size(); ++i) {
    world.put("/" + names[i], 1000, i + 1);
    world.registry->add(i, spec_of(names[i], "/" + names[i]));
    world.clock.advance_ns(1);
    ASSERT_EQ(world.use(names[i], i == 0 ? in_use : pins, error), AcquireOutcome::kReady);
  }
  world.registry->pin(9, source_of("pinned"));
  EXPECT_EQ(world.registry->idle_bytes(), 0);
  pins.clear();
  world.clock.advance_ns(1);
  ASSERT_EQ(world.use("first", pins, error), AcquireOutcome::kReady);  // used last now
  pins.clear();
  EXPECT_EQ(world.registry->idle_bytes(), 3000);
  const auto resident = [&] {
    std::string text;
    world.registry->for_each(
        [&](const RegistryView& view) { text += view.adapter != nullptr ? view.source->label + " " : ""; });
    return text;
  };
  world.registry->evict_idle(4500);
  EXPECT_EQ(resident(), "first pinned third used ");
  world.registry->evict_idle(4000);
  EXPECT_EQ(resident(), "first pinned third used ");
  world.registry->evict_idle(3000);
  EXPECT_EQ(resident(), "first pinned used ");
  world.registry->evict_idle(0);
  EXPECT_EQ(resident(), "pinned used ");
  EXPECT_EQ(world.registry->idle_bytes(), 0);
  EXPECT_EQ(world.registry->counters().evictions, 3u);
  world.registry->check();
  in_use.clear();
}

TEST(Registry, LoadOptionsReachTheLoader) {
  for (const bool on : {false, true}) {
    RegistryWorld world(1 << 20, {.strict = !on, .int8 = on});
    world.put("/a", 1000);
    world.registry->add(1, spec_of("a", "/a"));
    std::vector<AdapterPin> pins;
    Error error;
    ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
    EXPECT_EQ(world.asked.strict, !on);
    EXPECT_EQ(world.asked.int8, on);
  }
}

TEST(Registry, TheLeastRecentlyUsedUnusedVersionLeaves) {
  RegistryWorld world(2500 + 64 * 1024);
  for (const char* path : {"/a", "/b", "/c"}) {
    world.put(path, 1000);
    world.registry->add(1, spec_of(path + 1, path));
  }
  world.files["/c"].bytes = 66000;  // only fits when nothing else is there but one
  std::vector<AdapterPin> a, b, c;
  Error error;
  ASSERT_EQ(world.use("a", a, error), AcquireOutcome::kReady);
  world.clock.advance_ns(1);
  ASSERT_EQ(world.use("b", b, error), AcquireOutcome::kReady);
  a.clear();
  b.clear();
  ASSERT_EQ(world.use("c", c, error), AcquireOutcome::kReady);
  EXPECT_EQ(world.registry->counters().evictions, 1u);
  ASSERT_EQ(world.use("b", b, error), AcquireOutcome::kReady);
  EXPECT_EQ(world.registry->counters().loads, 3u);  // b had stayed
}

TEST(Registry, UsedVersionsAreNotEvictedAndTheLoadWaitsForThem) {
  RegistryWorld world(100000);
  world.put("/a", 60000);
  world.put("/b", 60000);
  world.registry->add(1, spec_of("a", "/a"));
  world.registry->add(2, spec_of("b", "/b"));
  std::vector<AdapterPin> a, b;
  Error error;
  ASSERT_EQ(world.use("a", a, error), AcquireOutcome::kReady);
  EXPECT_EQ(world.use("b", b, error), AcquireOutcome::kWaiting);
  a.clear();
  EXPECT_EQ(world.use("b", b, error), AcquireOutcome::kReady);
}

TEST(Registry, WhatCanNeverFitIsRefusedWithTheNumbersAndEvictsNobody) {
  RegistryWorld world(100000);
  world.put("/small", 1000);
  world.put("/big", 900000);
  world.registry->add(1, spec_of("small", "/small"));
  world.registry->add(2, spec_of("big", "/big"));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("small", pins, error), AcquireOutcome::kReady);
  pins.clear();
  ASSERT_EQ(world.use("big", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(error.code, ErrorCode::kTooLarge);
  EXPECT_NE(error.message.find("97.7 KiB"), std::string::npos) << error.message;
  EXPECT_EQ(world.registry->counters().evictions, 0u);
}

TEST(Registry, AFileThatGrowsInMemoryIsAskedAgainWithMoreRoom) {
  RegistryWorld world;
  world.put("/q", 1000);
  world.files["/q"].bytes = 300000;  // quantised in the file, wide in memory
  world.registry->add(1, spec_of("q", "/q"));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("q", pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 300000);
  EXPECT_EQ(world.reads["/q"], 2) << "once to learn its size, once with the room for it";
  EXPECT_EQ(world.asked.bytes_max, 300000);
}

// What the loader refuses as too large (a rank, a config, a list of patterns) does not
// get smaller with more room.
TEST(Registry, ALimitOfTheLoaderIsFinalAndEvictsNobody) {
  RegistryWorld world(200000);
  world.put("/small", 100000);
  world.put("/bad", 1000);
  world.files["/bad"].broken = too_large("its config names too many modules");
  world.registry->add(1, spec_of("small", "/small"));
  world.registry->add(2, spec_of("bad", "/bad"));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("small", pins, error), AcquireOutcome::kReady);
  pins.clear();
  ASSERT_EQ(world.use("bad", pins, error), AcquireOutcome::kFailed);
  EXPECT_NE(error.message.find("names too many modules"), std::string::npos) << error.message;
  EXPECT_EQ(world.registry->counters().evictions, 0u);
  EXPECT_EQ(world.reads["/bad"], 1);
  ASSERT_EQ(world.use("bad", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(world.reads["/bad"], 1) << "the file is the same";
}

TEST(Registry, AFailureIsRememberedUntilTheStampChanges) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.files["/a"].broken = corrupt("tensor x is cut off");
  world.registry->add(1, spec_of("a", "/a"));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find("tensor x is cut off"), std::string::npos);
  EXPECT_EQ(world.registry->counters().failures, 1u);
  world.files["/a"].broken.reset();  // repaired, but the stamp says it is the same file
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(world.registry->counters().failures, 1u);
  world.files["/a"].stamp.mtime_ns = 5;
  EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
}

// The file did not cause them, and its stamp does not change when they pass.
TEST(Registry, FailuresThatPassAreNotRememberedAsTheFilesOwn) {
  for (const ErrorCode code :
       {ErrorCode::kIo, ErrorCode::kOverloaded, ErrorCode::kUnavailable, ErrorCode::kForbidden, ErrorCode::kNotFound}) {
    SCOPED_TRACE(error_code_name(code));
    RegistryWorld world;
    world.put("/a", 1000);
    world.files["/a"].broken = Error{code, "cannot be read now"};
    world.registry->add(1, spec_of("a", "/a"));
    std::vector<AdapterPin> pins;
    Error error;
    ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
    EXPECT_EQ(error.code, code);
    EXPECT_EQ(world.reads["/a"], 1) << "a request is answered after one try";
    ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
    EXPECT_EQ(world.registry->counters().failures, 2u);
    world.files["/a"].broken.reset();
    EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << error.message;
  }
}

// A look at the headers, before anybody asks for it.
TEST(Registry, WhatALookAtTheHeadersFoundIsTheAnswerUntilTheFilesChange) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.files["/a"].broken = corrupt("tensor x is cut off");
  world.registry->add(1, spec_of("a", "/a"));
  const auto look = [&](const std::string& path) {
    const HeaderCheck check = check_headers(world.source(), spec_of("a", path), {}, kMaxLoraRank);
    world.registry->checked(check);
    world.registry->check();
    return check;
  };
  const auto seen = [&] {
    AdapterState state = AdapterState::kSource;
    std::string error;
    world.registry->for_each([&](const RegistryView& view) {
      state = view.state;
      if (view.error != nullptr) error = view.error->message;
    });
    return std::pair(state, error);
  };
  EXPECT_EQ(look("/a").status.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(seen(), std::pair(AdapterState::kFailed, std::string("adapter \"a\" was not loaded: tensor x is cut off")));
  EXPECT_EQ(world.registry->counters().failures, 0u) << "it was no load";
  EXPECT_TRUE(world.log.warnings.empty());
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(error.message, seen().second);
  EXPECT_EQ(world.reads["/a"], 1) << "nothing was read for the request";
  world.files["/a"].broken.reset();
  EXPECT_TRUE(look("/a").status.ok());
  EXPECT_EQ(seen().first, AdapterState::kFailed) << "the stamp says that it is the same file";
  world.files["/a"].stamp.mtime_ns = 5;
  EXPECT_TRUE(look("/a").status.ok());
  EXPECT_EQ(seen(), std::pair(AdapterState::kSource, std::string()));
  EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << error.message;
  // What is in memory is not told from other files, nor from those on disk.
  world.files["/a"].broken = corrupt("tensor y is cut off");
  world.files["/a"].stamp.mtime_ns = 6;
  EXPECT_FALSE(look("/a").status.ok());
  EXPECT_EQ(seen().first, AdapterState::kResident);
}

TEST(Registry, ALookAtOtherFilesOrDuringALoadChangesNothing) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.registry->add(1, spec_of("a", "/a"));
  HeaderCheck check{.source = spec_of("a", "/b"), .stamp = FileStamp{}, .status = corrupt("another one's")};
  const uint64_t before = world.registry->generation();
  world.registry->checked(check);
  check.source = spec_of("nobody", "/b");
  world.registry->checked(check);
  EXPECT_EQ(world.registry->generation(), before);
  world.registry->load(2, spec_of("a"), false);
  world.registry->pump();
  check.source = spec_of("a", "/a");
  world.registry->checked(check);
  world.settle();
  for (const RegistryReply& reply : world.replies()) EXPECT_TRUE(reply.status.ok()) << reply.ticket;
  std::vector<AdapterPin> pins;
  Error error;
  EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << error.message;
}

// What the system refuses may go well the next time.
TEST(Registry, ALookThatFailsIsNoLastWord) {
  RegistryWorld world;
  world.registry->add(1, spec_of("a", "/a"));
  for (const bool there : {false, true}) {
    if (there) world.put("/a", 1000);
    if (there) world.files["/a"].broken = Error{ErrorCode::kIo, "cannot be read now"};
    const HeaderCheck check = check_headers(world.source(), spec_of("a", "/a"), {}, kMaxLoraRank);
    EXPECT_FALSE(check.status.ok());
    EXPECT_FALSE(check.stamp);
    world.registry->checked(check);
  }
  world.files["/a"].broken.reset();
  std::vector<AdapterPin> pins;
  Error error;
  EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << error.message;
}

TEST(Registry, AnAbsentFileIsLookedForAgain) {
  RegistryWorld world;
  world.registry->add(1, spec_of("a", "/a"));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
  world.put("/a", 100);
  EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
}

TEST(Registry, ReplaceKeepsTheOldVersionForItsUsers) {
  RegistryWorld world;
  world.put("/a", 1000, 1);
  world.registry->load(1, spec_of("a", "/a"), false);
  world.settle();
  ASSERT_TRUE(world.replies().at(0).status.ok());
  std::vector<AdapterPin> old_pins, new_pins;
  Error error;
  ASSERT_EQ(world.use("a", old_pins, error), AcquireOutcome::kReady);
  world.put("/a", 2000, 2);
  world.registry->load(2, spec_of("a"), false);
  EXPECT_EQ(world.replies().at(0).status.error().code, ErrorCode::kInvalidArgument);
  world.registry->load(3, spec_of("a"), true);
  world.registry->pump();
  ASSERT_EQ(world.use("a", old_pins, error), AcquireOutcome::kReady);  // served while the new one is being read
  EXPECT_EQ(old_pins[1]->bytes, 1000);
  world.settle();
  ASSERT_TRUE(world.replies().at(0).status.ok());
  ASSERT_EQ(world.use("a", new_pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(new_pins[0]->bytes, 2000);
  EXPECT_EQ(old_pins[0]->bytes, 1000);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 3000);
  old_pins.clear();
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 2000);
  world.registry->check();
}

TEST(Registry, AFailedReplacementLeavesTheOldVersionServing) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.registry->load(1, spec_of("a", "/a"), false);
  world.settle();
  world.put("/b", 10);
  world.files["/b"].broken = corrupt("bad");
  world.registry->load(2, spec_of("b", "/b"), false, source_of("a"));
  world.settle();
  EXPECT_EQ(world.replies().at(1).status.error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(world.registry->knows(source_of("b")));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(pins[0]->bytes, 1000);
}

// It is known but not in memory: requests for it have nothing to do with the files that
// were to replace its own.
TEST(Registry, AFailedReplacementIsNoAnswerToRequests) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.put("/b", 10);
  world.files["/b"].broken = corrupt("bad");
  world.registry->add(1, spec_of("a", "/a"));
  world.registry->load(2, spec_of("b", "/b"), false, source_of("a"));
  std::vector<AdapterPin> pins;
  Error error;
  EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << error.message;
  const auto replies = world.replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[1].status.error().code, ErrorCode::kCorrupt);
}

TEST(Registry, APinnedVersionThatGaveRoomToItsFailedReplacementComesBack) {
  RegistryWorld world(100000);
  world.put("/a", 60000);
  world.put("/b", 60000);
  world.files["/b"].broken = corrupt("bad");
  world.registry->add(1, spec_of("a", "/a"));
  world.registry->pin(2, source_of("a"));
  world.settle();
  world.registry->load(3, spec_of("b", "/b"), false, source_of("a"));
  world.settle();
  EXPECT_EQ(world.replies().at(2).status.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(world.registry->counters().evictions, 1u);
  bool resident = false;
  world.registry->for_each([&](const RegistryView& view) { resident = view.adapter != nullptr && view.pinned; });
  EXPECT_TRUE(resident);
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(pins[0]->bytes, 60000);
}

TEST(Registry, APinGoesOverToWhatReplacesItsSource) {
  RegistryWorld world(100000);
  world.put("/a", 60000);
  world.put("/b", 70000);
  world.registry->add(1, spec_of("a", "/a"));
  world.registry->pin(2, source_of("a"));
  world.settle();
  world.registry->load(3, spec_of("b", "/b"), false, source_of("a"));
  world.settle();
  for (const RegistryReply& reply : world.replies()) EXPECT_TRUE(reply.status.ok()) << reply.ticket;
  world.registry->for_each([](const RegistryView& view) {
    EXPECT_EQ(view.pinned, view.source->id == source_of("b")) << "the old one had to give its room";
    EXPECT_EQ(view.bytes, view.pinned ? 70000 : 0);
  });
}

// Users of what is in memory come one after the other, always one at least: a load that
// waits for its room outlives their patience, not them its.
TEST(Registry, ALoadWithoutRoomDoesNotStarve) {
  RegistryWorld world(100000);
  world.put("/a", 60000);
  world.put("/b", 60000);
  world.registry->add(1, spec_of("a", "/a"));
  world.registry->add(2, spec_of("b", "/b"));
  std::vector<AdapterPin> first, second, cold;
  Error error;
  ASSERT_EQ(world.use("a", first, error), AcquireOutcome::kReady);
  const std::vector<std::string> a = {"a"}, b = {"b"};
  const auto round = [&](std::vector<AdapterPin>& pins, uint64_t order) {
    world.registry->begin_round();
    EXPECT_EQ(world.acquire(b, 100, 0, cold, error), AcquireOutcome::kWaiting);
    const auto outcome = world.acquire(a, order, 0, pins, error);
    world.registry->pump();
    world.finish_one();
    return outcome;
  };
  for (uint64_t order = 101; order < 105; ++order) {
    std::vector<AdapterPin> brief;
    EXPECT_EQ(round(brief, order), AcquireOutcome::kReady) << "others go on while it waits";
  }
  EXPECT_EQ(round(second, 99), AcquireOutcome::kReady) << "older ones do not give way";
  world.clock.advance_ns(kRoomPatienceNs);
  std::vector<AdapterPin> third;
  EXPECT_EQ(round(third, 105), AcquireOutcome::kWaiting);
  first.clear();
  EXPECT_EQ(round(third, 105), AcquireOutcome::kWaiting);
  second.clear();
  EXPECT_EQ(round(third, 105), AcquireOutcome::kWaiting);  // room is there, and read into
  world.registry->begin_round();
  EXPECT_EQ(world.acquire(b, 100, 0, cold, error), AcquireOutcome::kReady);
  world.registry->check();
}

TEST(Registry, WhatWaitsForAReplacedSourceIsNeverGivenTheNewOne) {
  RegistryWorld world;
  world.put("/a", 1000, 1);
  world.put("/b", 1000, 2);
  world.registry->load(1, spec_of("a", "/a"), false);
  world.settle();
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  const std::vector<AdapterSourceId> wanted = {source_of("a")};
  std::vector<AdapterClaim> claims;
  claims.push_back(world.registry->claim(pins[0]->version));
  pins.clear();
  world.registry->load(2, spec_of("b", "/b"), false, source_of("a"));
  world.settle();
  world.registry->drop(3, source_of("a"));
  EXPECT_EQ(world.registry->acquire(AdapterNeeds{wanted, claims}, 50, 0, pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(pins[0]->digest[0], 1);
  EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  pins.clear();
  claims.clear();
  EXPECT_EQ(world.registry->bytes(), 1000);
}

TEST(Registry, UnloadForgetsAtOnceAndAnswersWhenTheMemoryIsFree) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.registry->load(1, spec_of("a", "/a"), false);
  world.settle();
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  (void)world.replies();
  world.registry->drop(7, source_of("a"));
  EXPECT_TRUE(world.replies().empty());
  std::vector<AdapterPin> none;
  EXPECT_EQ(world.use("a", none, error), AcquireOutcome::kFailed);
  pins.clear();
  const auto replies = world.replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].ticket, 7u);
  EXPECT_EQ(replies[0].bytes_freed, 1000);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
  world.registry->drop(8, source_of("a"));
  EXPECT_EQ(world.replies().at(0).status.error().code, ErrorCode::kNotFound);
}

TEST(Registry, UnloadDuringTheLoadFreesWhatWasRead) {
  RegistryWorld world;
  world.put("/a", 1000);
  world.registry->load(1, spec_of("a", "/a"), false);
  world.registry->pump();
  world.finish_one();  // stamp
  world.registry->pump();
  world.registry->drop(2, source_of("a"));
  ASSERT_EQ(world.replies().at(0).status.error().code, ErrorCode::kCancelled);
  world.finish_one();
  EXPECT_EQ(world.replies().at(0).ticket, 2u);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

TEST(Registry, AFailedFirstLoadLeavesNoName) {
  RegistryWorld world;
  world.registry->load(1, spec_of("a", "/nowhere"), false);
  world.settle();
  EXPECT_EQ(world.replies().at(0).status.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(world.registry->knows(source_of("a")));
}

TEST(Registry, PinnedVersionsStayAndCountAgainstWhatCanEverFit) {
  RegistryWorld world(100000);
  world.put("/a", 60000);
  world.put("/b", 60000);
  world.registry->add(1, spec_of("a", "/a"));
  world.registry->pin(2, source_of("a"));
  world.settle();
  EXPECT_TRUE(world.replies().at(1).status.ok());
  world.registry->add(3, spec_of("b", "/b"));
  std::vector<AdapterPin> pins;
  Error error;
  EXPECT_EQ(world.use("b", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(error.code, ErrorCode::kTooLarge);
  world.registry->unpin(4, source_of("a"));
  EXPECT_EQ(world.use("b", pins, error), AcquireOutcome::kReady);
}

TEST(Registry, RankAboveTheLimitIsRefused) {
  RegistryWorld world(1 << 20, {.rank_max = 4});
  world.put("/a", 100);
  world.registry->add(1, spec_of("a", "/a"));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kFailed);
  EXPECT_NE(error.message.find("rank 8"), std::string::npos);
}

// Two requests that each want two adapters, with room for two in all: holding one while
// waiting for the other would never end.
TEST(Registry, SumsOfAdaptersDoNotBlockEachOther) {
  RegistryWorld world(160000);
  for (const char* path : {"/a", "/b", "/c", "/d"}) {
    world.put(path, 60000);
    world.registry->add(1, spec_of(path + 1, path));
  }
  const std::vector<std::string> first{"a", "b"}, second{"c", "d"};
  std::vector<AdapterPin> first_pins, second_pins;
  Error error;
  bool first_done = false, second_done = false;
  for (int round = 0; round < 60 && !second_done; ++round) {
    world.registry->begin_round();
    if (!first_done) first_done = world.acquire(first, 1, 0, first_pins, error) == AcquireOutcome::kReady;
    if (!second_done) second_done = world.acquire(second, 2, 0, second_pins, error) == AcquireOutcome::kReady;
    if (first_done) first_pins.clear();
    world.registry->pump();
    world.finish_one(world.jobs.size() > 1 ? 1 : 0);
  }
  EXPECT_TRUE(first_done && second_done);
}

// Each has room alone, not both at once: only the sum fails, whatever else waits for its
// members.
TEST(Registry, ASumThatDoesNotFitTogetherFailsAlone) {
  for (const bool one_resident : {false, true}) {
    SCOPED_TRACE(one_resident);
    RegistryWorld world(100000);
    for (const char* path : {"/a", "/b"}) {
      world.put(path, 60000);
      world.registry->add(1, spec_of(path + 1, path));
    }
    Error error;
    std::vector<AdapterPin> sum_pins, pins;
    if (one_resident) {
      ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
    }
    pins.clear();
    const std::vector<std::string> sum{"a", "b"}, alone{"b"};
    const uint64_t since = world.registry->serial();
    auto of_sum = AcquireOutcome::kWaiting, of_alone = AcquireOutcome::kWaiting;
    for (int round = 0; round < 40 && of_alone == AcquireOutcome::kWaiting; ++round) {
      world.registry->begin_round();
      if (of_sum == AcquireOutcome::kWaiting) of_sum = world.acquire(sum, 100, since, sum_pins, error);
      Error other;
      of_alone = world.acquire(alone, 101, since, pins, other);
      EXPECT_NE(of_alone, AcquireOutcome::kFailed) << other.message;
      world.registry->pump();
      world.registry->check();
      world.finish_one();
    }
    EXPECT_EQ(of_alone, AcquireOutcome::kReady);
    EXPECT_EQ(of_sum, AcquireOutcome::kFailed);
    EXPECT_EQ(error.code, ErrorCode::kTooLarge);
    for (const char* word : {"together", "\"a\"", "\"b\"", "117.2 KiB", "97.7 KiB"})
      EXPECT_NE(error.message.find(word), std::string::npos) << error.message;
    EXPECT_EQ(world.registry->counters().failures, 0u);
    pins.clear();
    EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << error.message;
  }
}

TEST(Registry, ACommandForAMemberOfASumThatDoesNotFitSucceeds) {
  RegistryWorld world(100000);
  for (const char* path : {"/a", "/b"}) {
    world.put(path, 60000);
    world.registry->add(1, spec_of(path + 1, path));
  }
  Error error;
  std::vector<AdapterPin> pins;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  pins.clear();
  (void)world.replies();
  world.registry->load(7, spec_of("b"), false);
  const std::vector<std::string> sum{"a", "b"};
  EXPECT_EQ(world.use(sum, pins, error), AcquireOutcome::kFailed);
  EXPECT_NE(error.message.find("together"), std::string::npos) << error.message;
  world.settle();
  const auto replies = world.replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_TRUE(replies[0].status.ok()) << replies[0].status.error().message;
}

// A member that has no room even alone says that of itself.
TEST(Registry, ASumWithAMemberThatCanNeverFitNamesThatMember) {
  RegistryWorld world(100000);
  world.put("/a", 60000);
  world.put("/huge", 900000);
  world.registry->add(1, spec_of("a", "/a"));
  world.registry->add(2, spec_of("huge", "/huge"));
  const std::vector<std::string> sum{"a", "huge"};
  Error error;
  std::vector<AdapterPin> pins;
  EXPECT_EQ(world.use(sum, pins, error), AcquireOutcome::kFailed);
  EXPECT_NE(error.message.find("\"huge\" was not loaded"), std::string::npos) << error.message;
}

TEST(Registry, AClaimKeepsOnlyAVersionThatCouldNotBeLoadedAgain) {
  RegistryWorld world(120000);
  Error error;
  std::vector<AdapterPin> pins;
  for (const char* name : {"a", "b"}) {
    world.put(std::string("/") + name, 40000);
    world.registry->add(1, spec_of(name, std::string("/") + name));
  }
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  AdapterClaim claim = world.registry->claim(pins[0]->version);
  pins.clear();
  ASSERT_EQ(world.use("b", pins, error), AcquireOutcome::kReady);  // a leaves for it
  pins.clear();
  EXPECT_EQ(world.registry->counters().evictions, 1u);
  EXPECT_EQ(world.registry->bytes(), 40000);
  claim.release();  // of nothing
  ASSERT_EQ(world.use("b", pins, error), AcquireOutcome::kReady);
  const std::vector<AdapterSourceId> sources = {source_of("b")};
  std::vector<AdapterClaim> claims;
  claims.push_back(world.registry->claim(pins[0]->version));
  const AdapterVersionId version = pins[0]->version;
  pins.clear();
  world.registry->drop(7, source_of("b"));
  for (const RegistryReply& reply : world.replies()) EXPECT_NE(reply.ticket, 7u) << "its memory is not free yet";
  EXPECT_EQ(world.registry->bytes(), 40000);
  EXPECT_EQ(world.registry->idle_bytes(), 0) << "what is claimed so is not idle";
  EXPECT_EQ(world.registry->acquire(AdapterNeeds{sources, claims}, 50, 0, pins, error), AcquireOutcome::kReady);
  EXPECT_EQ(pins[0]->version, version);
  claims.clear();
  pins.clear();
  EXPECT_EQ(world.replies().back().ticket, 7u);
  EXPECT_EQ(world.registry->bytes(), 0);
  world.registry->check();
}

// Random commands, uses, file changes and job ends: everything is answered, nothing
// leaks.
TEST(Registry, RandomTrafficLeavesNothingBehind) {
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    RegistryWorld world(400000, {.loads_max = 2});
    struct Request {
      std::vector<std::string> names;
      uint64_t order, since;
      std::vector<AdapterPin> pins;
      bool ready = false;
    };
    std::vector<std::unique_ptr<Request>> requests;
    uint64_t tickets = 0, answered = 0, order = 0;
    const auto name_of = [&] { return "n" + std::to_string(random.below(6)); };
    const auto path_of = [&] { return "/p" + std::to_string(random.below(7)); };
    for (int step = 0; step < 1500; ++step) {
      world.clock.advance_ns(1);
      switch (random.below(12)) {
        case 0:
          world.registry->add(++tickets, spec_of(name_of(), path_of()));
          break;
        case 1:
          world.registry->load(++tickets, spec_of(name_of(), random.below(2) ? path_of() : ""), random.below(2),
                               random.below(2) ? source_of(name_of()) : AdapterSourceId{});
          break;
        case 2:
          world.registry->drop(++tickets, source_of(name_of()));
          break;
        case 3:
          random.below(3) ? world.registry->unpin(++tickets, source_of(name_of()))
                          : world.registry->pin(++tickets, source_of(name_of()));
          break;
        case 4:
          world.put(path_of(), static_cast<int64_t>(random.below(seed % 2 == 0 ? 150000 : 300000)), random());
          if (random.below(4) == 0) world.files.begin()->second.broken = corrupt("bad");
          if (random.below(4) == 0) world.files.begin()->second.broken = io_error("not now");
          break;
        case 5:
        case 6: {
          auto request = std::make_unique<Request>();
          for (auto count = 1 + random.below(2); count > 0; --count) request->names.push_back(name_of());
          request->order = ++order;
          request->since = world.registry->serial();
          requests.push_back(std::move(request));
          break;
        }
        case 7:
          if (!requests.empty()) requests.erase(requests.begin() + static_cast<int64_t>(random.below(requests.size())));
          break;
        default:
          world.finish_one(world.jobs.empty() ? 0 : random.below(world.jobs.size()));
      }
      world.registry->begin_round();
      Error error;
      std::erase_if(requests, [&](const auto& request) {
        if (request->ready) return false;
        const auto outcome = world.acquire(request->names, request->order, request->since, request->pins, error);
        request->ready = outcome == AcquireOutcome::kReady;
        EXPECT_TRUE(outcome != AcquireOutcome::kWaiting || request->pins.empty());
        return outcome == AcquireOutcome::kFailed;
      });
      world.registry->pump();
      world.registry->check();
      if (step % 3 == 0) world.expect_changes_tell_all();
      answered += world.replies().size();
    }
    // Let everything end.
    for (int step = 0; step < 500 && !requests.empty(); ++step) {
      std::erase_if(requests, [](const auto& request) { return request->ready; });
      world.registry->begin_round();
      Error error;
      std::erase_if(requests, [&](const auto& request) {
        const auto outcome = world.acquire(request->names, request->order, request->since, request->pins, error);
        request->ready = outcome == AcquireOutcome::kReady;
        return outcome == AcquireOutcome::kFailed;
      });
      world.registry->pump();
      world.registry->check();
      world.finish_one();
    }
    EXPECT_TRUE(requests.empty());
    for (int name = 0; name < 6; ++name) world.registry->unpin(++tickets, source_of("n" + std::to_string(name)));
    world.settle();
    for (int name = 0; name < 6; ++name) world.registry->drop(++tickets, source_of("n" + std::to_string(name)));
    world.settle();
    answered += world.replies().size();
    EXPECT_EQ(answered, tickets);
    EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
  }
}

}  // namespace
}  // namespace loralei
