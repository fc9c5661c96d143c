// SPDX-License-Identifier: Apache-2.0
#include "store/sqlite_registry.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/prng.h"
#include "store/registry_test_util.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT

namespace fs = std::filesystem;

class SqliteRegistryTest : public testing::Test {
 protected:
  void SetUp() override {
    // In memory where there is such a folder: thousands of files are made, and synced.
    std::string folder = (fs::is_directory("/dev/shm") ? "/dev/shm/" : testing::TempDir()) + "registry-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path = (folder_ / "adapters.db").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<Registry> open(int64_t keep = 1) {
    auto opened = open_sqlite_registry(path, {.keep_versions = keep});
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  std::string refusal(const std::string& file) {
    auto opened = open_sqlite_registry(file);
    return opened.ok() ? "" : opened.error().message;
  }
  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }
  // What a machine that lost its power here would find.
  void copy_to(const std::string& name) const {
    for (const char* const end : {"", "-wal"}) {
      const std::string to = in_folder(name) + end;
      fs::remove(to);
      if (fs::exists(path + end)) fs::copy_file(path + end, to);
    }
  }
  std::string path;

 private:
  fs::path folder_;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Random writes, several under way at once, with restarts, and with copies of the files
// as they are at any moment: what was answered is in the copy.
TEST_F(SqliteRegistryTest, AgreesWithANaiveOneThroughRestartsAndCrashes) {
  for (const int64_t keep : {1, 3}) {
    const uint64_t seed = 7 + static_cast<uint64_t>(keep);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    fs::remove(path);
    Naive naive{keep, {}, {}};
    auto registry = open(keep);
    for (int round = 0; round < 60; ++round) {
      std::vector<int64_t> expected;
      std::vector<int64_t> answered;  // by the registry's thread, read after stop or when all are there
      std::promise<void> all;
      const size_t count = 1 + prng.below(20);
      for (size_t i = 0; i < count; ++i) {
        const std::string name = "n" + std::to_string(prng.below(6));
        const auto done = [&, count](const Result<int64_t>& number) {
          answered.push_back(number.ok() ? *number : -1);
          if (answered.size() == count) all.set_value();
        };
        if (const uint64_t what = prng.below(6); what == 0) {
          expected.push_back(naive.remove(name));
          ASSERT_TRUE(registry->remove(name, done).ok());
        } else if (what == 1) {  // one that is there, or not
          const int64_t number = std::max<int64_t>(1, naive.last[name] - static_cast<int64_t>(prng.below(4)));
          expected.push_back(naive.remove(name, number));
          ASSERT_TRUE(registry->remove_version(name, number, done).ok());
        } else {
          AdapterRecord one = record(name, "digest " + std::to_string(prng.below(1000)));
          one.created_s = static_cast<int64_t>(prng.below(1'000'000));
          one.origin = static_cast<AdapterOrigin>(prng.below(3));
          expected.push_back(naive.put(one));
          ASSERT_TRUE(registry->put(one, done).ok());
        }
      }
      all.get_future().wait();
      ASSERT_EQ(answered, expected);
      ASSERT_EQ(registry->list(), naive.list());
      if (prng.below(3) == 0) {
        copy_to("crashed.db");
        auto crashed = open_sqlite_registry(in_folder("crashed.db"), {.keep_versions = keep});
        ASSERT_TRUE(crashed.ok()) << crashed.error().message;
        ASSERT_EQ((*crashed)->list(), naive.list());
      }
      if (prng.below(4) == 0) {
        registry.reset();
        registry = open(keep);
        ASSERT_EQ(registry->list(), naive.list());
      }
    }
  }
}

// Copies made while the writer writes: each holds a beginning of what was written, and at
// least what had been answered.
TEST_F(SqliteRegistryTest, ACopyMadeAtAnyMomentHoldsWhatWasAnswered) {
  auto registry = open();
  std::atomic<int64_t> answered{0};
  int64_t taken = 0;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(registry->put(record("a"), [&](const Result<int64_t>& n) { answered = n.value(); }).ok());
      ++taken;
    }
    const int64_t before = answered;
    // The log before the file: as it is copied it may be cut anywhere.
    fs::remove(in_folder("copy.db-wal"));
    fs::remove(in_folder("copy.db"));
    fs::copy_file(path, in_folder("copy.db"));
    fs::copy_file(path + "-wal", in_folder("copy.db-wal"));
    auto copy = open_sqlite_registry(in_folder("copy.db"));
    ASSERT_TRUE(copy.ok()) << copy.error().message;
    const auto found = (*copy)->find("a");
    const int64_t number = found ? found->number : 0;
    EXPECT_GE(number, before);
    EXPECT_LE(number, taken);
  }
}

TEST_F(SqliteRegistryTest, RefusesFilesThatAreNotItsOwn) {
  EXPECT_NE(refusal(in_folder("")).find("is a folder"), std::string::npos);
  EXPECT_NE(refusal(in_folder("absent/adapters.db")).find("its folder must be there"), std::string::npos);
  EXPECT_NE(refusal("/dev/null").find("is a pipe, a device or a socket"), std::string::npos);
  write_file(path, std::string(5000, 'x'));
  EXPECT_NE(refusal(path).find("is no SQLite database"), std::string::npos);
  EXPECT_EQ(read_file(path), std::string(5000, 'x')) << "it is not ours to change";
  fs::remove(path);
  const auto run = [this](const char* sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
    sqlite3_close(database);
  };
  run("CREATE TABLE versions (name TEXT)");
  const std::string others = read_file(path);
  EXPECT_NE(refusal(path).find("database of another program"), std::string::npos);
  EXPECT_EQ(read_file(path), others);
  fs::remove(path);
  open().reset();
  run("PRAGMA user_version = 2");
  EXPECT_NE(refusal(path).find("newer version of Loralei (format 2"), std::string::npos);
  run("PRAGMA user_version = 1; CREATE TABLE more (x)");
  EXPECT_NE(refusal(path).find("its tables are not ours"), std::string::npos);
  run("DROP TABLE more; ALTER TABLE versions RENAME COLUMN path TO place");
  EXPECT_NE(refusal(path).find("is damaged"), std::string::npos);
}

TEST_F(SqliteRegistryTest, AChangedRowIsSeen) {
  auto registry = open();
  ASSERT_TRUE(put(*registry, record("a")).ok());
  registry.reset();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "UPDATE versions SET path = '/other'", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  EXPECT_NE(refusal(path).find("a row is not what was written"), std::string::npos);
}

TEST_F(SqliteRegistryTest, OneServerHasItForItself) {
  auto registry = open();
  EXPECT_NE(refusal(path).find("open in another program"), std::string::npos);
  EXPECT_TRUE(put(*registry, record("a")).ok());
  registry.reset();
  EXPECT_EQ(open()->list().size(), 1u);
}

TEST_F(SqliteRegistryTest, AFileThatIsNoLongerThereTakesNothing) {
  auto registry = open();
  ASSERT_TRUE(put(*registry, record("a")).ok());
  fs::rename(path, path + ".old");
  const auto answer = put(*registry, record("b"));
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.error().message.find("was removed or replaced"), std::string::npos);
  EXPECT_FALSE(registry->find("b"));
  EXPECT_FALSE(remove(*registry, "a").ok());
  EXPECT_TRUE(registry->find("a"));
  fs::rename(path + ".old", path);
  EXPECT_TRUE(put(*registry, record("b")).ok());
}

TEST_F(SqliteRegistryTest, AFullDiskIsTheAnswerAndNothingIsLost) {
  auto registry = open();
  ASSERT_TRUE(put(*registry, record("a")).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit little = before;
  little.rlim_cur = fs::file_size(path + "-wal") + 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto refused = put(*registry, record("b"));
  const auto kept = remove(*registry, "a");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIo) << refused.error().message;
  EXPECT_FALSE(kept.ok());
  EXPECT_FALSE(registry->find("b"));
  EXPECT_TRUE(registry->find("a"));
  EXPECT_EQ(put(*registry, record("c")).value(), 1) << "there is room again";
  registry.reset();
  registry = open();
  EXPECT_EQ(registry->list().size(), 2u);
}

// Every bit of the header and many others: the file is refused with a sentence,
// or says what it said.
TEST_F(SqliteRegistryTest, ADamagedFileIsRefusedOrMakesNoDifference) {
  auto registry = open(2);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(put(*registry, record("adapter " + std::to_string(i % 15))).ok());
  ASSERT_TRUE(remove(*registry, "adapter 3").ok());
  const std::vector<AdapterRecord> written = registry->list();
  registry.reset();
  const std::string bytes = read_file(path);
  ASSERT_GT(bytes.size(), 4096u);
  const uint64_t seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string damaged = in_folder("damaged.db");
  int refused = 0;
  const auto try_open = [&](const std::string& text, const std::string& what) {
    write_file(damaged, text);
    fs::remove(damaged + "-wal");
    fs::remove(damaged + "-journal");
    const auto opened = open_sqlite_registry(damaged, {.keep_versions = 2});
    if (!opened.ok()) {
      ++refused;
      EXPECT_NE(opened.error().message.find(damaged), std::string::npos) << opened.error().message;
    } else if (!text.empty()) {
      EXPECT_EQ((*opened)->list(), written) << what;
    }
  };
  for (size_t i = 0; i < 1500; ++i) {
    const size_t bit = i < 800 ? i : prng.below(bytes.size() * 8);
    std::string text = bytes;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    try_open(text, "bit " + std::to_string(bit));
  }
  EXPECT_GT(refused, 500);
  for (int i = 0; i < 60; ++i) {
    const size_t size = 1 + prng.below(bytes.size() - 1);
    try_open(bytes.substr(0, size), "cut to " + std::to_string(size));
  }
}

// Of a log that is damaged as a power failure may leave it, the beginning that is whole
// counts: never a part of a write, and never what was not written.
TEST_F(SqliteRegistryTest, OfADamagedLogTheBeginningCounts) {
  auto registry = open();
  std::vector<std::vector<AdapterRecord>> states = {{}};
  for (int i = 0; i < 12; ++i) {
    const std::string name = "n" + std::to_string(i % 5);
    ASSERT_TRUE((i % 4 == 3 ? remove(*registry, name) : put(*registry, record(name, std::to_string(i)))).ok());
    states.push_back(registry->list());
  }
  const std::string bytes = read_file(path), log = read_file(path + "-wal");
  ASSERT_GT(log.size(), 12u * 4096);
  const uint64_t seed = 12;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string damaged = in_folder("damaged.db");
  size_t fewer = 0;
  for (int i = 0; i < 300; ++i) {
    std::string text = log;
    const size_t place = prng.below(text.size());
    if (i % 3 == 0)
      text.resize(place);
    else
      text[place] = static_cast<char>(text[place] ^ (1 << prng.below(8)));
    write_file(damaged, bytes);
    write_file(damaged + "-wal", text);
    const auto opened = open_sqlite_registry(damaged);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const auto found = std::find(states.begin(), states.end(), (*opened)->list());
    ASSERT_NE(found, states.end()) << "place " << place;
    fewer += found + 1 != states.end();
  }
  EXPECT_GT(fewer, 100u);
}

}  // namespace
}  // namespace loralei
