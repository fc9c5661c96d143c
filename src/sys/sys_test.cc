// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <vector>

#include "sys/block_reader.h"
#include "sys/cpu.h"
#include "sys/env.h"
#include "sys/file.h"
#include "sys/memory_file_system.h"
#include "sys/no_threads.h"
#include "sys/pages.h"
#include "sys/proc_file.h"
#include "sys/process.h"
#include "sys/threads.h"

namespace loralei {
namespace {

// A folder on the real disk and the same tree in memory: both must answer alike.
class TwinTree : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "loralei-sys-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = std::filesystem::canonical(pattern).string();
    put("a.bin", "0123456789");
    put("sub/b.txt", "hello");
    put("empty", "");
    std::filesystem::create_symlink(root_ + "/a.bin", root_ + "/link");
    memory_.link(root_ + "/link", root_ + "/a.bin");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void put(const std::string& name, const std::string& contents) {
    std::filesystem::create_directories(parent_path(join_path(root_, name)));
    std::ofstream(join_path(root_, name), std::ios::binary) << contents;
    memory_.put(join_path(root_, name), contents);
  }

  std::string root_;
  PosixFileSystem disk_;
  MemoryFileSystem memory_;
};

TEST_F(TwinTree, BothAnswerAlike) {
  for (const FileSystem* files : {static_cast<const FileSystem*>(&disk_), static_cast<const FileSystem*>(&memory_)}) {
    EXPECT_EQ(files->read_all(root_ + "/a.bin", 10).value(), "0123456789");
    EXPECT_EQ(files->read_all(root_ + "/link", 10).value(), "0123456789");
    EXPECT_EQ(files->read_all(root_ + "/empty", 0).value(), "");
    EXPECT_EQ(files->read_all(root_ + "/a.bin", 9).error().code, ErrorCode::kTooLarge);
    EXPECT_EQ(files->read_all(root_ + "/none", 9).error().code, ErrorCode::kNotFound);
    EXPECT_FALSE(files->open(root_ + "/sub").ok());
    EXPECT_EQ(files->kind(root_ + "/sub"), PathKind::kDirectory);
    EXPECT_EQ(files->kind(root_ + "/sub/b.txt"), PathKind::kFile);
    EXPECT_EQ(files->kind(root_ + "/none"), PathKind::kAbsent);
    EXPECT_TRUE(files->exists(root_ + "/link"));
    EXPECT_EQ(files->real_path(root_ + "/link").value(), root_ + "/a.bin");
    EXPECT_EQ(files->real_path(root_ + "/none").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(files->stamp(root_ + "/link").value(), files->stamp(root_ + "/a.bin").value());
    EXPECT_NE(files->stamp(root_ + "/empty").value(), files->stamp(root_ + "/a.bin").value());
    std::string names;
    const std::vector<DirEntry> entries = files->list(root_).value();
    for (const DirEntry& entry : entries) names += entry.name + (entry.is_directory ? "/ " : " ");
    EXPECT_EQ(names, "a.bin empty link sub/ ");
    EXPECT_EQ(files->list(root_ + "/none").error().code, ErrorCode::kNotFound);
  }
}

TEST_F(TwinTree, ReadsExactlyOrSaysWhereTheFileEnds) {
  for (const FileSystem* files : {static_cast<const FileSystem*>(&disk_), static_cast<const FileSystem*>(&memory_)}) {
    const auto file = files->open(root_ + "/a.bin").value();
    EXPECT_EQ(file->size_bytes(), 10);
    std::byte buffer[4];
    ASSERT_TRUE(file->read_exact(3, buffer).ok());
    EXPECT_EQ(static_cast<char>(buffer[0]), '3');
    const Status cut = file->read_exact(8, buffer);
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(cut.error().message.find("a.bin' ends at byte 10 while 4 bytes from byte 8"), std::string::npos)
        << cut.error().message;
    EXPECT_FALSE(file->read_exact(100, buffer).ok());
    EXPECT_FALSE(file->read_exact(-1, buffer).ok());
    EXPECT_TRUE(file->read_exact(10, std::span<std::byte>()).ok());
  }
}

TEST_F(TwinTree, AChangedFileHasAnotherStamp) {
  for (const FileSystem* files : {static_cast<const FileSystem*>(&disk_), static_cast<const FileSystem*>(&memory_)}) {
    const FileStamp before = files->stamp(root_ + "/sub/b.txt").value();
    put("sub/b.txt", "hello, world");
    EXPECT_NE(files->stamp(root_ + "/sub/b.txt").value(), before);
    put("sub/b.txt", "hello");
  }
}

TEST_F(TwinTree, PipesAreRefusedWithoutHanging) {
  ASSERT_EQ(::mkfifo((root_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(disk_.open(root_ + "/pipe").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(disk_.kind(root_ + "/pipe"), PathKind::kOther);
}

TEST(MemoryFileSystem, InjectsFaults) {
  MemoryFileSystem files;
  files.put("/m/x", std::string(100, 'x'));
  files.set_faults("/m/x", {.fail_reads_from_byte = 50});
  auto file = files.open("/m/x").value();
  std::byte buffer[10];
  EXPECT_TRUE(file->read_exact(40, buffer).ok());
  EXPECT_EQ(file->read_exact(41, buffer).error().code, ErrorCode::kIo);
  files.set_faults("/m/x", {.end_at_byte = 20});
  file = files.open("/m/x").value();
  EXPECT_EQ(file->size_bytes(), 100);
  EXPECT_EQ(file->read_exact(15, buffer).error().code, ErrorCode::kCorrupt);
  files.set_faults("/m/x", {.fail_open = true});
  EXPECT_EQ(files.open("/m/x").error().code, ErrorCode::kIo);
  files.remove("/m/x");
  EXPECT_TRUE(file->read_exact(0, buffer).ok()) << "an open file outlives its name";
  EXPECT_FALSE(files.exists("/m"));
}

TEST(Paths, JoinSplitAndContain) {
  EXPECT_EQ(join_path("/a", "b"), "/a/b");
  EXPECT_EQ(join_path("/a/", "b"), "/a/b");
  EXPECT_EQ(join_path("/a", "/b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("a"), "");
  EXPECT_EQ(base_name("/a/b"), "b");
  EXPECT_TRUE(is_under("/a", "/a/b"));
  EXPECT_TRUE(is_under("/a", "/a"));
  EXPECT_FALSE(is_under("/a", "/ab"));
  EXPECT_TRUE(is_under("/", "/ab"));
}

TextReader reader_of(const std::map<std::string, std::string>& files) {
  return [files](const std::string& path) -> std::optional<std::string> {
    const auto file = files.find(path);
    if (file == files.end()) return std::nullopt;
    return file->second;
  };
}

TEST(Cgroup, Version2TakesTheTightestAncestor) {
  const TextReader read = reader_of({{"/proc/self/cgroup", "0::/a/b\n"},
                                     {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
                                     {"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
                                     {"/sys/fs/cgroup/a/b/memory.max", "1000000\n"},
                                     {"/sys/fs/cgroup/a/b/memory.current", "600000\n"},
                                     {"/sys/fs/cgroup/a/b/memory.stat", "anon 5\ninactive_file 100000\n"},
                                     {"/sys/fs/cgroup/a/memory.max", "max\n"}});
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(read), 1.5);
  EXPECT_EQ(cgroup_memory_limit_bytes(read), 1000000);
  EXPECT_EQ(cgroup_memory_free_bytes(read), 500000);
}

TEST(Cgroup, Version2ThrottlesBeyondMemoryHigh) {
  const auto limit = [](const char* high, const char* max) {
    return cgroup_memory_limit_bytes(reader_of({{"/proc/self/cgroup", "0::/a\n"},
                                                {"/sys/fs/cgroup/a/memory.high", high},
                                                {"/sys/fs/cgroup/a/memory.max", max}}));
  };
  EXPECT_EQ(limit("700\n", "1000\n"), 700);
  EXPECT_EQ(limit("700\n", "max\n"), 700);
  EXPECT_EQ(limit("max\n", "1000\n"), 1000);
}

TEST(Cgroup, Version1InAContainerFallsBackToTheMountsRoot) {
  const TextReader read =
      reader_of({{"/proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n"},
                 {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n"},
                 {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
                 {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n"},
                 {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n"}});
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(read), 2.5);
  EXPECT_EQ(cgroup_memory_limit_bytes(read), 2000);
  EXPECT_EQ(cgroup_memory_free_bytes(read), 0);
}

TEST(Cgroup, NoLimitsAndNonsenseMeanNoLimit) {
  for (const TextReader& read : {reader_of({}),
                                 reader_of({{"/proc/self/cgroup", "garbage\n::\n0::/\n3:cpu"},
                                            {"/sys/fs/cgroup/cpu.max", "many"},
                                            {"/sys/fs/cgroup/memory.max", "-5"}}),
                                 reader_of({{"/proc/self/cgroup", "1:memory,cpu:/\n"},
                                            {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"},
                                            {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"},
                                            {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"}})}) {
    EXPECT_LT(cgroup_cpu_quota(read), 0);
    EXPECT_EQ(cgroup_memory_limit_bytes(read), INT64_MAX);
    EXPECT_EQ(cgroup_memory_free_bytes(read), INT64_MAX);
  }
}

TEST(Machine, FiguresArePlausible) {
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), static_cast<int>(std::max<size_t>(1, allowed_cpus().size())));
  EXPECT_GT(total_memory_bytes(), 1 << 20);
  EXPECT_LE(available_memory_bytes(), total_memory_bytes());
  const Result<ProcessMemory> memory = process_memory();
  ASSERT_TRUE(memory.ok());
  EXPECT_GT(memory->rss_bytes, 100 << 10);
  EXPECT_GE(memory->rss_peak_bytes, memory->rss_bytes);
  EXPECT_GE(process_cpu_s(), 0.0);
  EXPECT_FALSE(isa_text(detect_isa()).empty());
  EXPECT_FALSE(cpu_model_name().empty());
}

TEST(Machine, ChildrenCountOnceTheyWereWaitedFor) {
  constexpr double kBusyS = 0.05;
  const double before_s = ended_children_cpu_s();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (process_cpu_s() < kBusyS) {
    }
    ::_exit(0);
  }
  EXPECT_EQ(ended_children_cpu_s(), before_s);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_GE(ended_children_cpu_s() - before_s, kBusyS / 2);  // some systems count in ticks
}

#if defined(__x86_64__)
TEST(Machine, VendorAndFamilyAreThoseLinuxNames) {
  const std::optional<std::string> info = read_system_text("/proc/cpuinfo");
  ASSERT_TRUE(info.has_value());
  const bool intel = info->find("GenuineIntel") != std::string::npos;
  const bool amd = info->find("AuthenticAMD") != std::string::npos || info->find("HygonGenuine") != std::string::npos;
  EXPECT_EQ(cpu_vendor(), intel ? CpuVendor::kIntel : amd ? CpuVendor::kAmd : CpuVendor::kOther);
  const std::string key = "cpu family\t: ";
  const size_t family = info->find(key);
  ASSERT_NE(family, std::string::npos);
  EXPECT_EQ(cpu_family(), std::atoi(info->c_str() + family + key.size()));
}
#endif

TEST(Process, BothWaysOfAskingTellTheSameMemory) {
  std::vector<char> much(64 << 20, 1);
  const int64_t resident = resident_bytes(), told = process_memory()->rss_bytes;
  EXPECT_GT(resident, 64 << 20);
  EXPECT_LT(std::abs(resident - told), 8 << 20) << much[1];
}

TEST(Machine, BusyTimeIsEverythingButIdle) {
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const std::string text = "cpu  100 20 30 9999 500 4 5 6 70 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
  EXPECT_DOUBLE_EQ(machine_cpu_s_of(text), 165 / ticks);
  EXPECT_DOUBLE_EQ(machine_cpu_s_of("cpu  100 20"), 120 / ticks);
  for (const char* broken : {"", "cpu", "cpu ", "cpu0 1 2 3", "cpu  x"}) EXPECT_EQ(machine_cpu_s_of(broken), 0);
  EXPECT_GT(machine_cpu_s(), 0);
}

TEST(Machine, TilesAreGrantedOnlyWhereTheProcessorHasThem) {
  if (!detect_isa().amx_int8) {
    EXPECT_FALSE(request_amx());
  } else if (request_amx()) {
    EXPECT_TRUE(request_amx());  // once granted, always granted
  }
}

TEST(Process, ItsDescriptorsAreRaisedAsFarAsTheSystemLetsThem) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 300) GTEST_SKIP() << "only " << before.rlim_max << " descriptors here";
  rlimit low = before;
  low.rlim_cur = 200;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(raise_descriptor_limit(100), 200) << "never lowered";
  EXPECT_EQ(raise_descriptor_limit(300), 300);
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, 300u);
  if (before.rlim_max != RLIM_INFINITY) {
    EXPECT_EQ(raise_descriptor_limit(INT64_MAX), static_cast<int64_t>(before.rlim_max));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(ProcFile, FieldsAreFoundAtLineStartsOnly) {
  const std::string text = "XVmRSS:  1 kB\nVmRSS:\t  12 kB\nBad: x kB\nHuge: 99999999999999999999 kB\n";
  EXPECT_EQ(field_kib(text, "VmRSS:"), 12 * 1024);
  EXPECT_EQ(field_kib(text, "Bad:"), std::nullopt);
  EXPECT_EQ(field_kib(text, "Huge:"), std::nullopt);
  EXPECT_EQ(field_kib(text, "None:"), std::nullopt);
}

TEST(Threads, OneThatTheSystemDoesNotGiveIsASentence) {
  {
    const NoThreads none;
    const auto refused = start_thread([] {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
    EXPECT_NE(refused.error().message.find("limit of processes"), std::string::npos) << refused.error().message;
  }
  int ran = 0;
  auto thread = start_thread([&] { ++ran; });
  ASSERT_TRUE(thread.ok());
  thread->join();
  EXPECT_EQ(ran, 1);
}

TEST(BlockReader, WithoutRingAndThreadsItIsASentence) {
  const NoThreads none;
  BlockReaderOptions options;
  options.allow_ring = false;
  EXPECT_FALSE(open_block_reader("/proc/self/exe", options).ok());
}

TEST(Env, UnsetAndEmptyDiffer) {
  ::setenv("LORALEI_TEST_VALUE", "", 1);
  EXPECT_EQ(env_string("LORALEI_TEST_VALUE"), "");
  ::unsetenv("LORALEI_TEST_VALUE");
  EXPECT_EQ(env_string("LORALEI_TEST_VALUE"), std::nullopt);
}

TEST(Pages, RefusesWhatCannotBe) {
  EXPECT_EQ(map_pages(0), nullptr);
  EXPECT_EQ(map_pages(-1), nullptr);
  EXPECT_EQ(map_pages(INT64_MAX), nullptr);
}

}  // namespace
}  // namespace loralei
