// SPDX-License-Identifier: Apache-2.0
// The disk tier where something goes wrong: processes that stop at any moment, files that
// are cut, changed, exchanged, removed or foreign, disks that are full. Whatever happens,
// what is answered is what was put.
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <optional>
#include <set>

#include "kv/kv_disk.h"
#include "kv/kv_disk_test_util.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

// Three records in one segment, sealed or left as a crash leaves it.
struct ThreeRecords {
  explicit ThreeRecords(const std::string& folder, bool sealed) : world(folder) {
    world.options.bytes_most = 64 << 10;
    world.reopen();
    for (uint64_t id = 0; id < 3; ++id) {
      records.push_back(raw_record(id, 100 + 50 * id));
      EXPECT_TRUE(world.put(records.back()));
      keys.push_back(records.back().record.key);
      ends.push_back((ends.empty() ? kDiskHeaderBytes : ends.back()) + disk_record_bytes(100 + 50 * std::ssize(ends)));
    }
    world.run();
    EXPECT_TRUE(!sealed || world.disk->flush(1000));
    world.disk.reset();
  }
  // Which of them are answered after a start.
  std::vector<bool> answered() {
    world.reopen();
    std::vector<bool> there;
    for (const DiskTestRecord& record : records) {
      const auto answer = world.fetch({record.record.key});
      there.push_back(answer.size() == 1);
      EXPECT_TRUE(!there.back() || (answer[0].record == record.record && answer[0].payload == record.payload));
    }
    world.disk.reset();
    return there;
  }

  DiskWorld world;
  std::vector<DiskTestRecord> records;
  std::vector<KvDiskKey> keys;
  std::vector<int64_t> ends;
};

TEST(KvDiskFaults, AFileThatIsCutAnywhereKeepsWhatIsWholeBeforeTheCut) {
  for (const bool sealed : {false, true}) {
    const DiskFolder folder;
    ThreeRecords three(folder.path(), sealed);
    const fs::path path = folder.segments().at(0);
    const std::string whole = read_whole(path);
    ASSERT_EQ(std::ssize(whole), three.ends[2] + (sealed ? disk_table_bytes(3) : 0));
    for (size_t cut = 0; cut <= whole.size(); ++cut) {
      write_whole(path, whole.substr(0, cut));
      const auto there = three.answered();
      for (size_t i = 0; i < 3; ++i)
        ASSERT_EQ(there[i], std::ssize(whole.substr(0, cut)) >= three.ends[i]) << "cut at " << cut;
      ASSERT_EQ(three.answered(), there) << "once more, cut at " << cut;
      if (cut < 8) fs::remove(path);  // it could be anybody's
    }
  }
}

TEST(KvDiskFaults, WhatIsChangedAtAnyBitIsNeverAnswered) {
  Prng random(3);
  for (const bool sealed : {false, true}) {
    const DiskFolder folder;
    ThreeRecords three(folder.path(), sealed);
    const fs::path path = folder.segments().at(0);
    const std::string whole = read_whole(path);
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << random.below(8)));
      write_whole(path, changed);
      const auto there = three.answered();
      // The file's own header, or the record in which it lies, if that is no padding.
      const auto place = static_cast<int64_t>(at);
      const auto in =
          static_cast<size_t>(std::upper_bound(three.ends.begin(), three.ends.end(), place) - three.ends.begin());
      const int64_t begin = in == 0 ? kDiskHeaderBytes : three.ends[in - 1];
      const bool padding = in < 3 && place >= begin + kDiskHeaderBytes + std::ssize(three.records[in].payload);
      for (size_t i = 0; i < 3; ++i) {
        const bool lost = place < kDiskHeaderBytes || (!padding && (sealed ? i == in : i >= in));
        ASSERT_EQ(there[i], !lost) << "record " << i << ", bit of byte " << at << (sealed ? ", sealed" : "");
      }
      fs::remove(path);
    }
  }
}

TEST(KvDiskFaults, WhatIsNotOursStaysAndIsNamedAndWhatIsDamagedGoes) {
  const DiskFolder folder;
  ThreeRecords three(folder.path(), true);
  const fs::path path = folder.segments().at(0), in = path.parent_path();
  const std::string whole = read_whole(path);
  const std::set<std::string> foreign = {"00000002.kv", "00000003.kv",        "0000000G.kv",
                                         "notes.txt",   "00000009.kv.part.x", "00000008.kv"};
  write_whole(in / "00000002.kv", "");
  write_whole(in / "00000003.kv", whole);  // the first one's
  write_whole(in / "0000000G.kv", whole);
  write_whole(in / "notes.txt", "mine");
  write_whole(in / "00000009.kv.part.x", "mine");
  fs::create_directory(in / "00000008.kv");
  std::string damaged = whole;
  damaged[40] ^= 1;
  write_whole(in / "00000004.kv", damaged);
  write_whole(in / "00000005.kv", whole.substr(0, 100));
  write_whole(in / "00000006.kv.part", whole);
  EXPECT_EQ(three.answered(), std::vector<bool>(3, true));
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(in)) left.insert(entry.path().filename().string());
  std::set<std::string> expected = foreign;
  expected.insert({"lock", "00000001.kv"});
  EXPECT_EQ(left, expected);
  const auto lines = three.world.log.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("2 files of keys and values"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("'00000002.kv', '00000003.kv', '00000008.kv', '00000009.kv.part.x' and 2 more"),
            std::string::npos)
      << lines[1];
  three.world.reopen();
  EXPECT_EQ(three.world.disk->stats().foreign_files, 6);
  EXPECT_EQ(three.world.disk->stats().damaged_files, 0) << "they are gone";
  EXPECT_TRUE(three.world.put(raw_record(9, 10)));
  three.world.run();
  EXPECT_TRUE(three.world.readable(disk_test_key(9))) << "under a name that nobody has";
  EXPECT_EQ(read_whole(in / "00000003.kv"), whole);
}

// With the right sums: only who has the format's digest can write one, so what it says is
// believed until the record is read.
TEST(KvDiskFaults, ATableThatLiesAnswersNothingThatWasNotPut) {
  const DiskFolder folder;
  ThreeRecords three(folder.path(), true);
  const DiskFormat format(three.world.options.format);
  const fs::path path = folder.segments().at(0);
  const std::string whole = read_whole(path);
  const auto table = static_cast<size_t>(three.ends[2]);
  const auto with_header = [&](size_t index, auto change) {
    std::string bytes = whole;
    const std::span<std::byte> at(reinterpret_cast<std::byte*>(bytes.data()) + table + index * kDiskHeaderBytes,
                                  kDiskHeaderBytes);
    DiskHeader header = format.read_header(at).value();
    change(header);
    format.write_header(header, at);
    write_whole(path, bytes);
    return three.answered();
  };
  using There = std::vector<bool>;
  EXPECT_EQ(with_header(0, [](DiskHeader&) {}), There({true, true, true}));
  EXPECT_EQ(with_header(0, [](DiskHeader& header) { header.record.key = disk_test_key(1); }),
            There({false, true, true}))
      << "the place of the first under the second's key, which the table names once more";
  EXPECT_EQ(with_header(1, [](DiskHeader& header) { header.record.key = disk_test_key(0); }),
            There({false, false, true}));
  EXPECT_EQ(with_header(1, [](DiskHeader& header) { header.record.exact = false; }), There({true, false, true}));
  EXPECT_EQ(with_header(1, [](DiskHeader& header) { header.sum ^= 1; }), There({true, false, true}));
  EXPECT_EQ(with_header(1, [](DiskHeader& header) { header.payload_bytes -= 1; }), There({true, false, true}));
  // What cannot be is no table; the records tell themselves.
  EXPECT_EQ(with_header(2, [](DiskHeader& header) { header.payload_bytes += 1000; }), There({true, true, true}));
  EXPECT_EQ(with_header(2, [](DiskHeader& header) { header.offset = kDiskHeaderBytes; }), There({true, true, true}));
  EXPECT_EQ(with_header(2, [](DiskHeader& header) { header.segment = 7; }), There({true, true, true}));
  std::string bytes = whole;
  for (const int64_t records : {int64_t{0}, int64_t{2}, int64_t{4}, int64_t{1} << 60, int64_t{-1}}) {
    const std::span<std::byte> footer(reinterpret_cast<std::byte*>(bytes.data()) + bytes.size() - kDiskFooterBytes,
                                      kDiskFooterBytes);
    format.write_footer(1, records, three.ends[2], footer);
    write_whole(path, bytes);
    EXPECT_EQ(three.answered(), There({true, true, true})) << records;
  }
}

TEST(KvDiskFaults, WhatASecondProcessLeavesWhenItIsKilledIsFound) {
  const DiskFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    DiskWorld world(folder.path());
    if (!world.open().ok()) ::_exit(1);
    for (uint64_t id = 0; id < 8; ++id) world.put(raw_record(id, 200));
    while (world.disk->run_one_job()) {
    }
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  DiskWorld world(folder.path());
  world.reopen();
  EXPECT_EQ(world.disk->stats().found_records, 8);
  const DiskFormat format(world.options.format);
  for (const fs::path& path : folder.segments()) {
    const auto file = PosixFileSystem().open(path.string());
    const auto number = static_cast<uint32_t>(std::stoul(path.stem().string(), nullptr, 16));
    std::vector<std::byte> buffer(512);
    EXPECT_TRUE(format.scan(**file, number, buffer, [](const DiskHeader&) {}).sealed) << path;
  }
  EXPECT_EQ(folder.bytes(), world.disk->stats().bytes);
  for (uint64_t id = 0; id < 8; ++id) EXPECT_EQ(world.fetch({disk_test_key(id)})[0].payload, disk_test_bytes(id, 200));
}

// No file of this process may grow beyond `bytes` while it lives: a full disk.
class FileLimit {
 public:
  explicit FileLimit(uint64_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit less = before_;
    less.rlim_cur = bytes;
    CHECK(::setrlimit(RLIMIT_FSIZE, &less) == 0);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }

 private:
  rlimit before_{};
  void (*const signal_)(int);
};

TEST(KvDiskFaults, AFullDiskPausesTheWritingAndKeepsWhatIsWhole) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.options.bytes_most = 64 << 10;  // segments of 4 KiB
  world.reopen();
  EXPECT_TRUE(world.put(raw_record(0, 300)));
  EXPECT_TRUE(world.put(raw_record(1, 300)));
  {
    const FileLimit limit(128 + 448 + 200);
    EXPECT_TRUE(world.put(raw_record(2, 300)));
    world.run();
    EXPECT_TRUE(world.readable(disk_test_key(0)));
    EXPECT_FALSE(world.disk->has(disk_test_key(1))) << "half of it found room";
    EXPECT_FALSE(world.disk->has(disk_test_key(2)));
    EXPECT_EQ(world.disk->stats().failed_writes, 2);
    EXPECT_FALSE(world.put(raw_record(3, 300)));
    ASSERT_EQ(world.log.lines().size(), 1u);
    EXPECT_NE(world.log.lines()[0].find("not kept on disk for now"), std::string::npos) << world.log.lines()[0];
    EXPECT_EQ(folder.bytes(), 128 + 448);
    world.clock.advance_ns(KvDisk::kPauseNs - 1);
    EXPECT_FALSE(world.put(raw_record(3, 300)));
    world.clock.advance_ns(1);
    EXPECT_TRUE(world.put(raw_record(3, 300))) << "the record alone has room";
    EXPECT_TRUE(world.put(raw_record(4, 300)));
    world.run();
    EXPECT_TRUE(world.readable(disk_test_key(3)));
    EXPECT_FALSE(world.disk->has(disk_test_key(4)));
  }
  world.clock.advance_ns(KvDisk::kPauseNs);
  EXPECT_TRUE(world.put(raw_record(4, 300)));
  world.run();
  EXPECT_TRUE(world.readable(disk_test_key(4)));
  EXPECT_TRUE(world.disk->flush(1000));
  world.reopen();
  EXPECT_EQ(world.disk->stats().found_records, 3);
  for (const uint64_t id : {0, 3, 4}) EXPECT_EQ(world.fetch({disk_test_key(id)})[0].payload, disk_test_bytes(id, 300));
}

TEST(KvDiskFaults, AFolderThatIsRemovedBeneathEndsNothing) {
  const DiskFolder folder;
  DiskWorld world(folder.path() + "/dir");
  world.reopen();
  for (uint64_t id = 0; id < 12; ++id) {
    EXPECT_TRUE(world.put(raw_record(id, 300)));
    world.run();
  }
  fs::remove_all(folder.path() + "/dir");
  EXPECT_TRUE(world.readable(disk_test_key(0))) << "nobody has looked yet";
  EXPECT_TRUE(world.fetch({disk_test_key(0)}).empty());
  EXPECT_FALSE(world.disk->has(disk_test_key(0)));
  for (uint64_t id = 20; id < 40; ++id) {
    world.put(raw_record(id, 300));
    world.run();
  }
  EXPECT_GT(world.disk->stats().failed_writes, 0);
  EXPECT_FALSE(world.put(raw_record(50, 300)));
  EXPECT_EQ(world.log.lines().size(), 1u);
  fs::create_directories(world.disk->folder());
  world.clock.advance_ns(KvDisk::kPauseNs);
  EXPECT_TRUE(world.put(raw_record(50, 300)));
  world.run();
  EXPECT_EQ(world.fetch({disk_test_key(50)})[0].payload, disk_test_bytes(50, 300));
}

TEST(KvDiskFaults, WhatCannotBeRemovedStillCounts) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  EXPECT_TRUE(world.put(raw_record(0, 300)));
  EXPECT_TRUE(world.disk->flush(1000));
  const fs::path path = folder.segments().at(0);
  fs::rename(path, folder.path() + "/kept");
  fs::create_directory(path);  // which no unlink removes
  for (uint64_t id = 1; id < 200; ++id) {
    while (!world.put(raw_record(id, 300))) {
      world.clock.advance_ns(KvDisk::kPauseNs);
      world.run();
    }
    while (world.disk->run_one_job())
      ASSERT_LE(folder.bytes() - static_cast<int64_t>(fs::file_size(folder.path() + "/kept")),
                world.options.bytes_most - 128 - 448 - disk_table_bytes(1));
  }
  EXPECT_GT(world.disk->stats().failed_writes, 0) << "the room was too little now and then";
  EXPECT_GT(world.disk->stats().written_blocks, 100);
  fs::remove(path);
  world.reopen();
  EXPECT_GT(world.disk->stats().found_records, 10);
}

TEST(KvDiskFaults, WithLessRoomThanLastTimeTheOldestGo) {
  const DiskFolder folder;
  DiskWorld world(folder.path());
  world.reopen();
  for (uint64_t id = 0; id < 30; ++id) {
    EXPECT_TRUE(world.put(raw_record(id, 300)));
    world.run();
  }
  EXPECT_TRUE(world.disk->flush(1000));
  for (const int64_t bytes : {12 << 10, 6 << 10, 3 << 10, 2 << 10}) {
    world.options.bytes_most = bytes;
    world.reopen();
    EXPECT_LE(folder.bytes(), bytes);
    EXPECT_TRUE(world.readable(disk_test_key(29)));
    EXPECT_FALSE(world.readable(disk_test_key(0)));
    EXPECT_GE(world.disk->stats().found_records, (bytes - 1024) / 448 / 2);
    world.disk->check();
  }
}

// What may be done to a folder between two processes.
void harm(Prng& random, const DiskFolder& folder) {
  const auto segments = folder.segments();
  if (segments.empty()) return;
  const auto any = [&] { return segments[random.below(segments.size())]; };
  const fs::path path = random.below(2) == 0 ? segments.back() : any();
  std::string bytes = read_whole(path);
  switch (random.below(8)) {
    case 0:
      return write_whole(path, bytes.substr(0, random.below(bytes.size() + 1)));
    case 1:
      for (uint64_t flips = 1 + random.below(4); flips-- > 0 && !bytes.empty();) {
        char& byte = bytes[random.below(bytes.size())];
        byte ^= static_cast<char>(1 << random.below(8));
      }
      return write_whole(path, bytes);
    case 2:
      fs::remove(path);
      return;
    case 3: {
      const fs::path other = any();
      const std::string its = read_whole(other);
      write_whole(other, bytes);
      return write_whole(path, its);
    }
    case 4:
      return write_whole(path, bytes + bytes);
    case 5: {  // a record over another one
      const std::string its = read_whole(any());
      if (its.size() < 800 || bytes.size() < 800) return;
      bytes.replace(128 + 64 * random.below(4), 448, its.substr(128, 448));
      return write_whole(path, bytes);
    }
    case 6:
      return write_whole(path, bytes + std::string(random.below(500), '\0'));
    default:
      return;
  }
}

// Without what was made foreign.
int64_t bytes_of_ours(const DiskFolder& folder, const DiskWorld& world) {
  const DiskFormat format(world.options.format);
  int64_t sum = 0;
  for (const fs::path& path : folder.segments()) {
    const auto file = PosixFileSystem().open(path.string());
    const auto number = static_cast<uint32_t>(std::stoul(path.stem().string(), nullptr, 16));
    const bool own_folder = path.parent_path() == world.disk->folder();
    const bool ours = own_folder ? format.look(**file, number) == DiskFile::kOurs : is_disk_segment(**file);
    if (ours) sum += (*file)->size_bytes();
  }
  return sum;
}

using EverPut = std::map<KvDiskKey, std::vector<DiskTestRecord>>;

// What is answered under a key is one of those that were put under it.
void expect_put(DiskWorld& world, const EverPut& ever, int64_t& answered) {
  for (const auto& [key, records] : ever) {
    for (const DiskTestRecord& answer : world.fetch({key})) {
      ASSERT_EQ(answer.record.key, key);
      ++answered;
      const bool put = std::any_of(records.begin(), records.end(), [&](const DiskTestRecord& record) {
        if (answer.record != record.record) return false;
        if (record.record.form != KvDiskForm::kDelta) return answer.payload == record.payload;
        const auto anchors = ever.find(record.record.anchor);
        return std::any_of(anchors->second.begin(), anchors->second.end(), [&](const DiskTestRecord& anchor) {
          std::vector<std::byte> both = record.payload;
          both.insert(both.end(), anchor.payload.begin(), anchor.payload.end());
          return anchor.record.form == KvDiskForm::kAlone && answer.payload == both;
        });
      });
      ASSERT_TRUE(put);
    }
  }
}

DiskTestRecord random_version(Prng& random) {
  const uint64_t id = random.below(50);
  const size_t bytes = 1 + random.below(300);
  const bool exact = random.below(2) == 0;
  DiskTestRecord made = id % 5 == 0   ? alone_record(id, bytes, exact)
                        : id % 5 == 1 ? delta_record(id, id - 1, bytes, exact)
                                      : raw_record(id, bytes, exact);
  made.payload = disk_test_bytes(random(), made.payload.size());
  return made;
}

TEST(KvDiskFaults, WhateverHappensToTheFilesAnswersAreWhatWasPut) {
  int64_t answered = 0, lost = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const DiskFolder folder;
    DiskWorld world(folder.path());
    EverPut ever;
    for (int process = 0; process < 12; ++process) {
      world.options.format[0] = static_cast<uint8_t>(random.below(8) == 0);
      world.reopen();
      ASSERT_LE(bytes_of_ours(folder, world), world.options.bytes_most);
      for (uint64_t puts = random.below(30); puts-- > 0;) {
        const DiskTestRecord record = random_version(random);
        if (world.put(record)) ever[record.record.key].push_back(record);
        if (random.below(3) == 0) world.run();
        if (random.below(20) == 0) harm(random, folder);
      }
      if (random.below(2) == 0) world.run();
      ASSERT_TRUE(random.below(3) > 0 || world.disk->flush(1000));
      expect_put(world, ever, answered);
      if (testing::Test::HasFatalFailure()) return;
      world.disk->check();
      lost += world.disk->stats().lost_records;
      world.disk.reset();  // as a crash: jobs that were not begun are not done
      for (uint64_t harms = random.below(3); harms-- > 0;) harm(random, folder);
    }
  }
  EXPECT_GT(answered, 1000);
  EXPECT_GT(lost, 50);
}

}  // namespace
}  // namespace loralei
