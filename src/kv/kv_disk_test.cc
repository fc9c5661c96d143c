// SPDX-License-Identifier: Apache-2.0
// The disk tier where nothing goes wrong: what is put is found again as it was, by the
// next process too, within its bounds. Where something does: kv_disk_faults_test.cc.
#include "kv/kv_disk.h"

#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "base/allocation_counter.h"
#include "kv/kv_disk_test_util.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

TEST(KvDisk, WhatIsPutIsThereWhenItIsWrittenAndAfterARestart) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  const DiskTestRecord raw = raw_record(1, 300), base = alone_record(2, 120), delta = delta_record(3, 2, 40);
  for (const DiskTestRecord* record : {&raw, &base, &delta}) {
    EXPECT_FALSE(world.disk->has(record->record.key));
    EXPECT_TRUE(world.put(*record));
    EXPECT_TRUE(world.disk->has(record->record.key));
    EXPECT_FALSE(world.readable(record->record.key)) << "it is on its way";
  }
  EXPECT_EQ(fs::directory_iterator(folder.path())->path().filename().string().size(), 16u);
  for (int restart = 0; restart < 2; ++restart) {
    world.run();
    const std::vector<KvDiskKey> keys = {raw.record.key, base.record.key, delta.record.key, disk_test_key(4)};
    const KvDiskFound found = world.disk->readable(keys, false);
    EXPECT_EQ(found.blocks, 3u);
    EXPECT_EQ(found.bytes, disk_record_bytes(300) + 2 * disk_record_bytes(120) + disk_record_bytes(40));
    EXPECT_EQ(world.disk->readable(keys, true).blocks, 1u) << "the raw one alone is exact";
    const auto answer = world.fetch(keys);
    ASSERT_EQ(answer.size(), 3u);
    EXPECT_TRUE(answer[0].record == raw.record && answer[0].payload == raw.payload);
    EXPECT_TRUE(answer[1].record == base.record && answer[1].payload == base.payload);
    std::vector<std::byte> both = delta.payload;
    both.insert(both.end(), base.payload.begin(), base.payload.end());
    EXPECT_TRUE(answer[2].record == delta.record && answer[2].payload == both);
    EXPECT_TRUE(world.disk->flush(1000));
    world.reopen();
    EXPECT_EQ(world.disk->stats().found_records, 3);
  }
  EXPECT_TRUE(world.log.lines().empty());
}

TEST(KvDisk, BlobsAreTakenOnceTheirGridIsLearntAndKept) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.options.grid = 0;
  world.reopen();
  EXPECT_FALSE(world.disk->learns_grid());
  bool kept = false;
  world.disk->learn_grid(DiskWorld::kGrid, [&]() -> Status {
    kept = true;
    return {};
  });
  EXPECT_TRUE(world.disk->learns_grid());
  EXPECT_EQ(world.disk->grid(), 0u);
  EXPECT_FALSE(kept) << "that is the disk's thread's to do";
  world.run();
  EXPECT_TRUE(kept);
  EXPECT_FALSE(world.disk->learns_grid());
  ASSERT_EQ(world.disk->grid(), DiskWorld::kGrid);
  EXPECT_TRUE(world.put(alone_record(1, 100)));
  EXPECT_TRUE(world.put(raw_record(2, 100)));
  world.run();
  EXPECT_EQ(world.fetch({disk_test_key(1), disk_test_key(2)}).size(), 2u);
  EXPECT_EQ(world.disk->stats().written_coded, 1);
  EXPECT_EQ(world.disk->stats().read_coded, 1);
  EXPECT_TRUE(world.disk->flush(1000));
  // A process that does not know it yet finds what is raw alone; one that does, all.
  world.reopen();
  EXPECT_FALSE(world.readable(disk_test_key(1)));
  EXPECT_TRUE(world.readable(disk_test_key(2)));
  world.options.grid = DiskWorld::kGrid;
  world.reopen();
  EXPECT_TRUE(world.readable(disk_test_key(1)));
  EXPECT_TRUE(world.log.lines().empty());
}

TEST(KvDisk, AGridThatCouldNotBeKeptIsNotLearntWhichIsTold) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.options.grid = 0;
  world.reopen();
  world.disk->learn_grid(DiskWorld::kGrid, [] { return Status(io_error("no room is left on it")); });
  world.run();
  EXPECT_FALSE(world.disk->learns_grid());
  EXPECT_EQ(world.disk->grid(), 0u);
  ASSERT_EQ(world.log.lines().size(), 1u);
  EXPECT_NE(world.log.lines()[0].find("no room is left on it"), std::string::npos);
  EXPECT_TRUE(world.put(raw_record(2, 100)));
  world.run();
  EXPECT_TRUE(world.readable(disk_test_key(2)));
}

TEST(KvDisk, FilesAreTheirOwnersAloneAndNameNobody) {
  const DiskFolder folder;
  DiskWorld world(folder.path() + "/made");
  world.reopen();
  const std::string salt = "secret salt of a client";
  const TokenId tokens[16] = {'h', 'e', 'l', 'l', 'o'};
  const DiskTestRecord record{{.key = kv_disk_key({}, salt, tokens), .form = KvDiskForm::kRaw, .exact = true},
                              disk_test_bytes(1, 100)};
  EXPECT_TRUE(world.put(record));
  world.run();
  int files = 0, folders = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    struct stat info {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << entry.path();
    (entry.is_directory() ? folders : files) += 1;
    if (!entry.is_regular_file()) continue;
    const std::string bytes = read_whole(entry.path());
    EXPECT_EQ(bytes.find(salt), std::string::npos);
    EXPECT_EQ(bytes.find(std::string(reinterpret_cast<const char*>(tokens), 20)), std::string::npos);
  }
  EXPECT_EQ(folders, 2);
  EXPECT_EQ(files, 2) << "the lock and a segment";
}

TEST(KvDisk, WhatServesAsWellIsNotWrittenAgain) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  EXPECT_TRUE(world.put(alone_record(1, 100)));
  world.run();
  EXPECT_FALSE(world.disk->wants(raw_record(1, 300, false).record));
  EXPECT_TRUE(world.put(raw_record(1, 300, false)));
  EXPECT_FALSE(world.disk->run_one_job()) << "nothing was to be done";
  const DiskTestRecord exact = raw_record(1, 300, true);
  EXPECT_TRUE(world.disk->wants(exact.record)) << "it serves those, too, who ask for what is exact";
  EXPECT_TRUE(world.put(exact));
  world.run();
  EXPECT_EQ(world.fetch({exact.record.key}, true)[0].payload, exact.payload);
  EXPECT_FALSE(world.disk->wants(alone_record(1, 100).record));
  EXPECT_EQ(world.disk->stats().records, 1);
}

TEST(KvDisk, ADeltaIsThereWithTheVeryAnchorItWasPutWith) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  const DiskTestRecord base = alone_record(1, 100), delta = delta_record(2, 1, 50);
  EXPECT_FALSE(world.put(delta)) << "its anchor is not there";
  EXPECT_EQ(world.disk->stats().refused_puts, 1);
  EXPECT_TRUE(world.put(raw_record(3, 100)));
  EXPECT_FALSE(world.put(delta_record(4, 3, 50))) << "what lies raw is no anchor";
  EXPECT_TRUE(world.put(base));
  EXPECT_TRUE(world.put(delta)) << "its anchor is on its way";
  EXPECT_FALSE(world.put(delta_record(5, 2, 50))) << "nor is a delta";
  world.run();
  EXPECT_TRUE(world.readable(delta.record.key));

  DiskTestRecord other = alone_record(1, 100, true);
  other.payload = disk_test_bytes(99, 90);
  EXPECT_TRUE(world.put(other)) << "it is exact";
  world.run();
  EXPECT_TRUE(world.readable(base.record.key));
  EXPECT_FALSE(world.readable(delta.record.key)) << "its anchor has other integers now";
  EXPECT_TRUE(world.disk->wants(delta.record));
  EXPECT_TRUE(world.put(delta));
  world.run();
  for (int restart = 0; restart < 2; ++restart) {
    const auto answer = world.fetch({delta.record.key});
    ASSERT_EQ(answer.size(), 1u);
    EXPECT_EQ(answer[0].payload.size(), 50u + 90u);
    EXPECT_TRUE(std::equal(other.payload.begin(), other.payload.end(), answer[0].payload.begin() + 50));
    EXPECT_TRUE(world.disk->flush(1000));
    world.reopen();
  }
  world.disk->drop(base.record.key);
  EXPECT_FALSE(world.disk->has(base.record.key));
  EXPECT_FALSE(world.readable(delta.record.key));
  world.disk->check();
}

TEST(KvDisk, BlobsOfAnotherGridAreOfNoUse) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  EXPECT_TRUE(world.put(alone_record(1, 100)));
  EXPECT_TRUE(world.put(raw_record(2, 100)));
  EXPECT_TRUE(world.disk->flush(1000));
  for (const uint64_t grid : {DiskWorld::kGrid + 1, uint64_t{0}, DiskWorld::kGrid}) {
    world.options.grid = grid;
    world.reopen();
    EXPECT_EQ(world.readable(disk_test_key(1)), grid == DiskWorld::kGrid);
    EXPECT_EQ(world.disk->wants(raw_record(1, 100, false).record), grid != DiskWorld::kGrid);
    EXPECT_TRUE(world.readable(disk_test_key(2), true));
  }
}

TEST(KvDisk, AnotherFormatFindsNothing) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  EXPECT_TRUE(world.put(raw_record(1, 100)));
  EXPECT_TRUE(world.disk->flush(1000));
  world.options.format[31] ^= 1;  // its folder has the same name
  world.reopen();
  EXPECT_FALSE(world.disk->has(disk_test_key(1)));
  ASSERT_EQ(world.log.lines().size(), 1u);
  EXPECT_NE(world.log.lines()[0].find("'00000001.kv'"), std::string::npos) << world.log.lines()[0];
  EXPECT_TRUE(world.put(raw_record(1, 50)));
  EXPECT_TRUE(world.disk->flush(1000));
  EXPECT_EQ(folder.segments().size(), 2u) << "the other is still there";
  world.options.format[31] ^= 1;
  world.reopen();
  EXPECT_EQ(world.fetch({disk_test_key(1)})[0].payload.size(), 100u);
}

TEST(KvDisk, OneServerAtATimeHasAFolder) {
  const DiskFolder folder;
  DiskWorld world(folder.path()), other(folder.path());
  world.reopen();
  const Status refused = other.open();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("another server keeps"), std::string::npos) << refused.error().message;
  EXPECT_EQ(other.ledger.used_bytes(), 0);
  other.options.format[0] ^= 1;
  EXPECT_TRUE(other.open().ok()) << "another model has a folder of its own";
  world.disk.reset();
  other.options.format[0] ^= 1;
  EXPECT_TRUE(other.open().ok());
}

TEST(KvDisk, WhatCannotBeIsRefusedWithASentence) {
  const DiskFolder folder;
  const auto sentence = [&](auto change) {
    DiskWorld world(folder.path());
    change(world);
    const Status status = world.open();
    EXPECT_EQ(world.ledger.used_bytes() == 0, !status.ok());
    return status.ok() ? std::string() : status.error().message;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_EQ(sentence([](DiskWorld& world) {}), "");
  EXPECT_EQ(sentence([](DiskWorld& world) { world.options.bytes_most = 2 * (128 + 448 + 128 + 64); }), "");
  EXPECT_TRUE(has(sentence([](DiskWorld& world) { world.options.bytes_most = 2 * (128 + 448 + 128 + 64) - 1; }),
                  "need at least 1.50 KiB"));
  EXPECT_TRUE(has(sentence([](DiskWorld& world) { world.options.folder = ""; }), "name one"));
  EXPECT_TRUE(has(sentence([](DiskWorld& world) { world.options.record_bytes_most = int64_t{1} << 40; }), "1.00 TiB"));
  EXPECT_TRUE(has(sentence([](DiskWorld& world) { world.options.read_buffer_bytes = 1 << 24; }), "memory budget"));
  write_whole(folder.path() + "/file", "");
  EXPECT_TRUE(has(sentence([](DiskWorld& world) { world.options.folder += "/file"; }), "cannot make folder"));
}

TEST(KvDisk, FetchesAreFewAndTheirMemoryComesBackWhenTheyAreDropped) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.options.bytes_most = 1 << 20;
  world.options.write_buffer_bytes = 1 << 20;
  world.options.read_buffer_bytes = 2 * 1024;  // two, each with room for two records of 448 bytes
  world.reopen();
  std::vector<KvDiskKey> keys;
  for (uint64_t id = 0; id < 5; ++id) {
    EXPECT_TRUE(world.put(raw_record(id, 300)));
    keys.push_back(disk_test_key(id));
  }
  world.run();
  EXPECT_FALSE(world.disk->fetch(0, {}, false));
  EXPECT_FALSE(world.disk->fetch(0, std::vector{disk_test_key(7)}, false)) << "nothing is there";
  EXPECT_TRUE(world.disk->fetch(11, keys, false));
  EXPECT_TRUE(world.disk->fetch(12, std::span(keys).first(1), false));
  EXPECT_FALSE(world.disk->fetch(13, keys, false)) << "two are under way";
  world.run();
  ASSERT_EQ(world.fetched.size(), 2u);
  EXPECT_EQ(world.fetched[0].ticket, 11u);
  EXPECT_EQ(world.fetched[0].blocks.size(), 2u);
  EXPECT_TRUE(world.fetched[0].more);
  EXPECT_EQ(world.fetched[1].blocks.size(), 1u);
  EXPECT_FALSE(world.fetched[1].more);
  EXPECT_FALSE(world.disk->fetch(14, keys, false)) << "two are in our hands";
  world.fetched.pop_back();
  EXPECT_TRUE(world.disk->fetch(15, std::span(keys).subspan(2), false));
  world.run();
  EXPECT_EQ(world.disk->stats().read_blocks, 2 + 1 + 2);
  const int64_t used = world.ledger.used_bytes();
  world.disk.reset();
  EXPECT_GT(world.ledger.used_bytes(), 0) << "answers are still read";
  EXPECT_LT(world.ledger.used_bytes(), used);
  EXPECT_EQ(world.fetched[0].blocks[1].payload[7], disk_test_bytes(1, 300)[7]);
  world.fetched.clear();
  EXPECT_EQ(world.ledger.used_bytes(), 0);
}

TEST(KvDisk, WithoutRoomInTheRingAPutIsRefusedAndNothingIsAllocated) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.options.bytes_most = 1 << 20;
  world.reopen();
  std::vector<DiskTestRecord> records;
  for (uint64_t id = 0; id < 40; ++id) records.push_back(raw_record(id, 300));
  for (int round = 0; round < 4; ++round) {
    int taken = 0;
    testing_support::start_counting_allocations();
    for (int i = 0; i < 10; ++i) taken += world.put(records[static_cast<size_t>(10 * round + i)]);
    const bool there = world.readable(records[0].record.key);
    const auto allocated = testing_support::stop_counting_allocations();
    EXPECT_EQ(taken, 4096 / 448);
    EXPECT_EQ(there, round > 0);
    EXPECT_TRUE(round < 2 || allocated.count == 0) << "all of it has been used before";
    world.run();
  }
  EXPECT_EQ(world.disk->stats().refused_puts, 4);
  EXPECT_EQ(world.disk->stats().written_blocks, 36);
}

// An open file keeps its room on disk when it has been removed.
TEST(KvDisk, WhatWasRemovedIsNotOpenAnyMore) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  for (uint64_t id = 0; id < 100; ++id) {
    EXPECT_TRUE(world.put(raw_record(id, 300)));
    world.run();
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      const std::string name = fs::read_symlink(entry.path(), closed).string();
      ASSERT_TRUE(name.find(folder.path()) == std::string::npos || !name.ends_with(" (deleted)")) << name;
    }
    uint64_t oldest = 0;
    while (!world.disk->has(disk_test_key(oldest))) ++oldest;
    ASSERT_EQ(world.fetch({disk_test_key(oldest)}).size(), 1u);
  }
  EXPECT_GT(world.disk->stats().evicted_records, 50);
}

// Elders: what another model, or this one before an update, has left in the same folder.
TEST(KvDisk, WhatOtherFormatsLeftGoesFirstUnlessTheyAreInUse) {
  const DiskFolder folder;
  DiskWorld world(folder.path()), other(folder.path());
  other.options.format[0] = 9;
  other.reopen();
  for (uint64_t id = 0; id < 60; ++id) {
    EXPECT_TRUE(other.put(raw_record(id, 300)));
    other.run();
  }
  EXPECT_TRUE(other.disk->flush(1000));
  const auto left = folder.segments();
  ASSERT_GT(folder.bytes(), other.options.bytes_most / 2);
  world.reopen();
  EXPECT_EQ(world.disk->stats().bytes, 0) << "of others that run";
  world.disk.reset();
  other.disk.reset();

  world.reopen();
  EXPECT_EQ(world.disk->stats().bytes, folder.bytes());
  for (uint64_t id = 0; id < 200; ++id) {
    EXPECT_TRUE(world.put(raw_record(id, 300)));
    while (world.disk->run_one_job()) ASSERT_LE(folder.bytes(), world.options.bytes_most);
    if (id != 10) continue;
    EXPECT_FALSE(fs::exists(left.front())) << "the oldest";
    EXPECT_TRUE(fs::exists(left.back()));
    EXPECT_TRUE(world.readable(disk_test_key(0))) << "ours are younger";
  }
  EXPECT_FALSE(fs::exists(left.back()));
  world.disk->check();
}

// The real thread, and one beside it that drops the answers.
TEST(KvDisk, TheThreadWritesReadsAndRemovesWhileTheEngineGoesOn) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.options.thread = true;
  world.reopen();
  std::atomic<bool> over{false};
  std::atomic<int64_t> answered{0}, wrong{0};
  std::thread reader([&] {
    for (bool last = false; !last;) {
      last = over;
      std::vector<KvFetched> answers;
      {
        const std::lock_guard lock(world.mutex);
        std::swap(answers, world.fetched);
      }
      for (const KvFetched& answer : answers) {
        for (const KvFetchedBlock& block : answer.blocks) {
          const auto expected = disk_test_bytes(answer.ticket, 300);
          if (!std::equal(block.payload.begin(), block.payload.end(), expected.begin(), expected.end())) ++wrong;
          ++answered;
        }
      }
      std::this_thread::yield();
    }
  });
  Prng random(5);
  for (int operation = 0; operation < 5000 || (answered < 50 && operation < 1'000'000); ++operation) {
    const uint64_t id = random.below(60);
    if (random.below(2) == 0) {
      world.put(raw_record(id, 300));
    } else {
      world.disk->fetch(id, std::vector{disk_test_key(id)}, true);
    }
    if (operation % 64 == 0) world.disk->check();
    const bool flushed = operation % 1000 != 0 || world.disk->flush(60'000);
    EXPECT_TRUE(flushed);
  }
  EXPECT_TRUE(world.disk->flush(60'000));
  over = true;
  reader.join();
  world.fetched.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(answered, 50);
  EXPECT_LE(folder.bytes(), world.options.bytes_most);
  EXPECT_GT(world.disk->stats().evicted_records, 0);
  world.disk->check();
}

TEST(KvDisk, NobodyWaitsForADiskThatIsStuck) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  std::atomic<bool> stuck{false}, go{false};
  world.options.thread = true;
  auto opened = KvDisk::open(world.options, world.ledger, world.clock, world.log, [&](KvFetched&&) {
    stuck = true;
    while (!go) std::this_thread::yield();
  });
  ASSERT_TRUE(opened.ok());
  KvDisk& disk = **opened;
  const DiskTestRecord first = raw_record(1, 300);
  EXPECT_TRUE(disk.put(first.record, first.payload));
  EXPECT_TRUE(disk.flush(60'000));
  EXPECT_TRUE(disk.fetch(1, {&first.record.key, 1}, true));
  while (!stuck) std::this_thread::yield();
  int taken = 0;
  for (uint64_t id = 2; id < 30; ++id) taken += disk.put(raw_record(id, 300).record, raw_record(id, 300).payload);
  EXPECT_EQ(taken, 4096 / 448);
  EXPECT_TRUE(disk.fetch(2, {&first.record.key, 1}, true));
  EXPECT_FALSE(disk.fetch(3, {&first.record.key, 1}, true));
  EXPECT_TRUE(disk.readable({&first.record.key, 1}, true).blocks == 1);
  EXPECT_FALSE(disk.flush(1));
  go = true;
  EXPECT_TRUE(disk.flush(60'000));
  EXPECT_EQ(disk.stats().written_blocks, 1 + taken);
}

}  // namespace
}  // namespace loralei
