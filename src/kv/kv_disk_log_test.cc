// SPDX-License-Identifier: Apache-2.0
// The disk tier beside a naive log: what is there, what goes, and what the folder takes.
#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "kv/kv_disk.h"
#include "kv/kv_disk_test_util.h"

namespace loralei {
namespace {

// A naive log: the same rules over a list of records that is searched from its end.
class NaiveLog {
 public:
  NaiveLog(int64_t bytes_most, int64_t segment_bytes, size_t entries)
      : bytes_most_(bytes_most), segment_bytes_(segment_bytes), entries_(entries) {}

  struct Item {
    DiskTestRecord record;
    std::vector<std::byte> anchor;  // of a delta
    size_t segment = 0;
    bool written = false;
  };
  Item* find(const KvDiskKey& key) {
    const auto at = items_.find(key);
    return at == items_.end() ? nullptr : &at->second;
  }
  const std::vector<std::byte>* anchor_of(const Item& item, bool written) {
    const Item* const anchor = find(item.record.record.anchor);
    const bool same = anchor != nullptr && anchor->record.record.form == KvDiskForm::kAlone &&
                      anchor->record.payload == item.anchor && (anchor->written || !written);
    return same ? &anchor->record.payload : nullptr;
  }
  bool readable(const KvDiskKey& key, bool exact) {
    const Item* const item = find(key);
    if (item == nullptr || !item->written || (exact && !item->record.record.exact)) return false;
    return item->record.record.form != KvDiskForm::kDelta || anchor_of(*item, true) != nullptr;
  }
  bool wants(const KvDiskRecord& record) {
    const Item* const item = find(record.key);
    if (item == nullptr || (record.exact && !item->record.record.exact)) return true;
    if (item->record.record.form == KvDiskForm::kDelta && anchor_of(*item, false) == nullptr) return true;
    int64_t behind = 0;
    for (size_t i = item->segment; i < segments_.size(); ++i) behind += bytes_of(i);
    return item->written && 4 * behind >= 3 * bytes_most_;
  }
  bool put(const DiskTestRecord& record) {
    if (!wants(record.record)) return true;
    const int64_t bytes = disk_record_bytes(std::ssize(record.payload));
    while (items_.size() == entries_) drop_oldest();
    if (!open_ || segments_.back().end + bytes + disk_table_bytes(segments_.back().records + 1) > segment_bytes_) {
      open_ = false;
      while (this->bytes() + segment_bytes_ > bytes_most_) drop_oldest();
      segments_.push_back({});
      open_ = true;
    }
    Item item{.record = record, .segment = segments_.size() - 1};
    if (record.record.form == KvDiskForm::kDelta) {
      const Item* const anchor = find(record.record.anchor);
      if (anchor == nullptr || anchor->record.record.form != KvDiskForm::kAlone) return false;
      item.anchor = anchor->record.payload;
    }
    segments_.back().end += bytes;
    ++segments_.back().records;
    items_[record.record.key] = item;
    return true;
  }
  void written() {
    for (auto& [key, item] : items_) item.written = true;
  }
  // The next process removes segments of nothing.
  void restart() {
    open_ = false;
    for (Segment& segment : segments_) segment.gone |= segment.records == 0;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (size_t i = 0; i < segments_.size(); ++i) sum += bytes_of(i);
    return sum;
  }

 private:
  struct Segment {
    int64_t end = kDiskHeaderBytes, records = 0;
    bool gone = false;
  };
  int64_t bytes_of(size_t index) const {
    if (segments_[index].gone) return 0;
    if (open_ && index + 1 == segments_.size()) return segment_bytes_;
    return segments_[index].end + disk_table_bytes(segments_[index].records);
  }
  void drop_oldest() {
    size_t oldest = 0;
    while (segments_[oldest].gone) ++oldest;
    if (oldest + 1 == segments_.size()) open_ = false;
    segments_[oldest].gone = true;
    std::erase_if(items_, [&](const auto& item) { return item.second.segment == oldest; });
  }

  const int64_t bytes_most_, segment_bytes_;
  const size_t entries_;
  std::vector<Segment> segments_;
  std::map<KvDiskKey, Item> items_;
  bool open_ = false;
};

DiskTestRecord random_record(Prng& random) {
  const uint64_t id = random.below(90);
  const size_t bytes = 1 + random.below(300);
  const bool exact = random.below(2) == 0;
  if (random.below(3) == 0) return raw_record(id, bytes, exact);
  return id % 3 == 0 ? alone_record(id, bytes, exact) : delta_record(id, id - id % 3, bytes, exact);
}

struct LogRun {
  size_t answered = 0, deltas = 0;
  int64_t evicted = 0, refused = 0;
};

void expect_answer(const std::vector<KvDiskKey>& keys, bool exact, DiskWorld& world, NaiveLog& naive, LogRun& run) {
  size_t expected = 0;
  while (expected < keys.size() && naive.readable(keys[expected], exact)) ++expected;
  ASSERT_EQ(world.disk->readable(keys, exact).blocks, expected);
  const auto answer = world.fetch(keys, exact);
  ASSERT_EQ(answer.size(), expected);
  for (size_t i = 0; i < expected; ++i) {
    const NaiveLog::Item& item = *naive.find(keys[i]);
    std::vector<std::byte> payload = item.record.payload;
    payload.insert(payload.end(), item.anchor.begin(), item.anchor.end());
    ASSERT_TRUE(answer[i].record == item.record.record && answer[i].payload == payload);
    ++run.answered;
    run.deltas += item.record.record.form == KvDiskForm::kDelta;
  }
}

void run_beside_naive_log(uint64_t seed, int64_t usual_bytes, LogRun& run) {
  const DiskFolder folder;
  Prng random(seed);
  DiskWorld world(folder.path());
  world.options.record_bytes_usual = usual_bytes;
  world.reopen();
  NaiveLog naive(world.options.bytes_most, 1024,
                 std::max<size_t>(16, (16 << 10) / static_cast<size_t>(disk_record_bytes(usual_bytes))));
  for (int operation = 0; operation < 400; ++operation) {
    switch (random.below(8)) {
      case 0:
        while (world.disk->run_one_job()) ASSERT_LE(folder.bytes(), world.options.bytes_most);
        naive.written();
        break;
      case 1: {
        std::vector<KvDiskKey> keys;
        world.run();
        naive.written();
        const bool exact = random.below(2) == 0;
        for (uint64_t i = random.below(6); i-- > 0;) {
          keys.push_back(disk_test_key(random.below(90)));
          for (int look = 0; look < 5 && !naive.readable(keys.back(), exact); ++look)
            keys.back() = disk_test_key(random.below(90));
        }
        expect_answer(keys, exact, world, naive, run);
        break;
      }
      case 2:
        if (random.below(10) > 0) break;
        run.evicted += world.disk->stats().evicted_records;
        ASSERT_TRUE(world.disk->flush(1000));
        naive.written();
        world.reopen();
        naive.restart();
        ASSERT_EQ(folder.bytes(), naive.bytes());
        break;
      default: {
        const DiskTestRecord record = random_record(random);
        while (world.disk->run_one_job()) {
        }  // so that there is room in the ring
        naive.written();
        ASSERT_EQ(world.disk->wants(record.record), naive.wants(record.record));
        const bool taken = world.put(record);
        ASSERT_EQ(taken, naive.put(record));
        run.refused += !taken;
        ASSERT_EQ(world.disk->has(record.record.key), naive.find(record.record.key) != nullptr);
      }
    }
    world.disk->check();
    ASSERT_LE(folder.bytes(), world.options.bytes_most);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(KvDiskLog, RandomOperationsAgreeWithANaiveLog) {
  LogRun run;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run_beside_naive_log(seed, seed % 2 == 0 ? 300 : 4000, run);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(run.answered, 1000u);
  EXPECT_GT(run.deltas, 100u);
  EXPECT_GT(run.evicted, 500);
  EXPECT_GT(run.refused, 100);
}

// Who waits for a fetch does not wait for a sync, but once, so that its turn comes.
TEST(KvDiskLog, FetchesThatWaitGoBeforeASeal) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  ASSERT_TRUE(world.put(raw_record(0, 300)));
  world.run();
  const auto ask = [&] { return world.disk->fetch(1, std::vector{disk_test_key(0)}, true); };
  const auto answers = [&] { return world.fetched.size(); };
  ASSERT_TRUE(world.put(raw_record(1, 300)));  // a seal, another segment, a write
  ASSERT_TRUE(ask());
  while (answers() == 0) ASSERT_TRUE(world.disk->run_one_job());
  EXPECT_EQ(folder.segments().size(), 1u) << "the next has not been begun";
  const auto unsealed = std::filesystem::file_size(folder.segments()[0]);
  ASSERT_TRUE(ask());
  ASSERT_TRUE(world.disk->run_one_job());
  EXPECT_EQ(answers(), 1u) << "the seal had its turn";
  EXPECT_GT(std::filesystem::file_size(folder.segments()[0]), unsealed);
  world.run();
  EXPECT_EQ(answers(), 2u);
  EXPECT_EQ(folder.segments().size(), 2u);
}

// While other jobs wait: puts, seals, and segments that go.
void run_fetches_between(uint64_t seed, size_t& answered) {
  const DiskFolder folder;
  Prng random(seed);
  DiskWorld world(folder.path());
  world.reopen();
  std::map<KvDiskKey, std::vector<std::byte>> put;
  std::map<uint64_t, std::vector<std::vector<std::byte>>> asked;  // by ticket
  uint64_t ticket = 0;
  const auto look = [&] {
    for (const KvFetched& fetched : world.fetched) {
      const auto& expected = asked.at(fetched.ticket);
      ASSERT_EQ(fetched.blocks.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_TRUE(std::ranges::equal(fetched.blocks[i].payload, expected[i]));
      answered += expected.size();
      asked.erase(fetched.ticket);
    }
    world.fetched.clear();
  };
  for (uint64_t operation = 0; operation < 600; ++operation) {
    if (random.below(2) == 0) {
      DiskTestRecord record = raw_record(random.below(60), 1 + random.below(300));
      record.payload = disk_test_bytes(operation, record.payload.size());
      if (world.disk->wants(record.record) && world.put(record)) put[record.record.key] = record.payload;
    } else if (random.below(2) == 0) {
      std::vector<KvDiskKey> keys;
      for (uint64_t i = 1 + random.below(4); i-- > 0;) keys.push_back(disk_test_key(random.below(60)));
      const size_t readable = world.disk->readable(keys, true).blocks;
      if (world.disk->fetch(++ticket, keys, true))
        for (size_t i = 0; i < readable; ++i) asked[ticket].push_back(put.at(keys[i]));
    }
    for (uint64_t jobs = random.below(3); jobs-- > 0;) world.disk->run_one_job();
    world.disk->check();
    ASSERT_LE(folder.bytes(), world.options.bytes_most);
    look();
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(world.disk->flush(1000));
  look();
  EXPECT_TRUE(asked.empty()) << "each is answered";
  EXPECT_EQ(world.disk->stats().lost_records, 0);
  EXPECT_GT(world.disk->stats().evicted_records, 0);
}

TEST(KvDiskLog, WhatIsFetchedWhileOtherJobsWaitIsWhatWasThere) {
  size_t answered = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run_fetches_between(seed, answered);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(answered, 500u);
}

}  // namespace
}  // namespace loralei
