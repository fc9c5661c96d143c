// SPDX-License-Identifier: Apache-2.0
// What the tests of the disk tier share: a folder, an engine's side of a KvDisk without a
// thread, records made of a number, and what may be answered.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log_test_util.h"
#include "base/prng.h"
#include "kv/kv_disk.h"

namespace loralei {

inline KvDiskKey disk_test_key(uint64_t id) {
  const TokenId token = static_cast<TokenId>(id);
  return kv_disk_key({}, "test", {&token, 1});
}
inline std::vector<std::byte> disk_test_bytes(uint64_t seed, size_t count) {
  Prng random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct DiskTestRecord {
  KvDiskRecord record;
  std::vector<std::byte> payload;
};

// In memory where there is such a folder, so that a sync takes no time.
class DiskFolder {
 public:
  DiskFolder() {
    const std::filesystem::path memory = "/dev/shm";
    const bool has_memory = ::access(memory.c_str(), W_OK) == 0;
    std::string name =
        ((has_memory ? memory : std::filesystem::temp_directory_path()) / "kv_disk_test_XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~DiskFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  // All files of segments below, in the order of their names.
  std::vector<std::filesystem::path> segments() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
      if (entry.path().extension() == ".kv" && entry.is_regular_file()) found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
      if (entry.is_regular_file()) sum += static_cast<int64_t>(entry.file_size());
    return sum;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void write_whole(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The engine's side.
class DiskWorld {
 public:
  static constexpr uint64_t kGrid = 77;

  explicit DiskWorld(const std::string& folder) {
    options.folder = folder;
    options.format[0] = 1;
    options.grid = kGrid;
    options.bytes_most = 16 << 10;
    options.record_bytes_most = 300;
    options.write_buffer_bytes = 4096;
    options.read_buffer_bytes = 8192;
    options.thread = false;
  }

  Status open() {
    fetched.clear();
    disk.reset();
    auto opened = KvDisk::open(options, ledger, clock, log, [this](KvFetched&& answer) {
      const std::lock_guard lock(mutex);
      fetched.push_back(std::move(answer));
    });
    if (!opened.ok()) return std::move(opened).error();
    disk = std::move(opened).value();
    return {};
  }
  void reopen() {
    const Status status = open();
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
  void run() {
    while (disk->run_one_job()) {
    }
    disk->check();
  }
  bool put(const DiskTestRecord& record) { return disk->put(record.record, record.payload); }
  bool readable(const KvDiskKey& key, bool exact = false) { return disk->readable({&key, 1}, exact).blocks == 1; }
  // What of the keys is answered, with copies of the payloads; the anchors' behind them.
  std::vector<DiskTestRecord> fetch(const std::vector<KvDiskKey>& keys, bool exact = false) {
    std::vector<DiskTestRecord> answer;
    if (!disk->fetch(1, keys, exact)) return answer;
    run();
    CHECK(fetched.size() == 1);
    for (const KvFetchedBlock& block : fetched[0].blocks) {
      answer.push_back({block.record, {block.payload.begin(), block.payload.end()}});
      answer.back().payload.insert(answer.back().payload.end(), block.anchor_payload.begin(),
                                   block.anchor_payload.end());
    }
    fetched.clear();
    return answer;
  }

  KvDiskOptions options;
  Ledger ledger{1 << 24};
  ManualClock clock;
  CollectingLog log;
  std::mutex mutex;
  std::vector<KvFetched> fetched;
  std::unique_ptr<KvDisk> disk;
};

inline DiskTestRecord raw_record(uint64_t id, size_t bytes, bool exact = true) {
  return {{.key = disk_test_key(id), .form = KvDiskForm::kRaw, .exact = exact}, disk_test_bytes(id, bytes)};
}
inline DiskTestRecord alone_record(uint64_t id, size_t bytes, bool exact = false) {
  return {{.key = disk_test_key(id), .form = KvDiskForm::kAlone, .exact = exact, .grid = DiskWorld::kGrid},
          disk_test_bytes(id, bytes)};
}
inline DiskTestRecord delta_record(uint64_t id, uint64_t anchor, size_t bytes, bool exact = false) {
  DiskTestRecord made = alone_record(id, bytes, exact);
  made.record.form = KvDiskForm::kDelta;
  made.record.anchor = disk_test_key(anchor);
  return made;
}

}  // namespace loralei
