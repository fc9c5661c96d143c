// SPDX-License-Identifier: Apache-2.0
#include "sys/shared_signal.h"

#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "base/prng.h"
#include "sys/shared_memory.h"

namespace loralei {
namespace {

constexpr int64_t kLong = 20'000'000'000;

// Two signals that processes share.
struct Pair {
  SharedSignal there, back;
};
class SharedPair {
 public:
  SharedPair() : memory_(std::move(SharedMemory::create("signals", sizeof(Pair))).value()) {}
  Pair& operator*() const { return *std::launder(reinterpret_cast<Pair*>(memory_.data())); }
  Pair* operator->() const { return &**this; }

 private:
  SharedMemory memory_;
};

// Answers what comes until it is 0.
void echo(Pair& pair, int64_t spin_ns) {
  for (uint32_t seen = 0;;) {
    seen = pair.there.wait(seen, spin_ns, kLong);
    pair.back.post(seen);
    if (seen == 0) return;
  }
}

TEST(SharedSignal, NoValueIsLostBetweenThreadsWhetherTheySpinOrSleep) {
  const uint64_t seed = 301;
  Prng prng(seed);
  for (const int64_t spin_ns : {int64_t{0}, int64_t{3'000}, int64_t{200'000}}) {
    SharedPair pair;
    std::thread other([&] { echo(*pair, spin_ns); });
    for (uint32_t i = 1; i <= 5000; ++i) {
      pair->there.post(i);
      const int64_t mine = static_cast<int64_t>(prng.below(3)) * 2'000;
      ASSERT_EQ(pair->back.wait(i - 1, mine, kLong), i) << "seed " << seed;
    }
    pair->there.post(0);
    other.join();
  }
}

TEST(SharedSignal, WaitsNoLongerThanItMay) {
  SharedPair pair;
  EXPECT_EQ(pair->there.wait(0, 0, 0), 0u);
  EXPECT_EQ(pair->there.wait(0, 1'000'000, 2'000'000), 0u);
  EXPECT_EQ(pair->there.wait(0, 0, -5), 0u);
  EXPECT_EQ(pair->there.wait(0, 5'000'000, 1'000), 0u);
  pair->there.post(9);
  EXPECT_EQ(pair->there.wait(0, 0, kLong), 9u);
}

// Wherever it is killed, asleep or not, the next one finds the signal as it should be.
TEST(SharedSignal, OutlivesWhoWaits) {
  const uint64_t seed = 302;
  Prng prng(seed);
  SharedPair pair;
  uint32_t sent = 0;
  for (int round = 0; round < 30; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (uint32_t seen = sent;;) pair->back.post(seen = pair->there.wait(seen, 0, kLong));
    }
    for (uint64_t more = prng.below(20); more > 0; --more) {
      pair->there.post(++sent);
      ASSERT_EQ(pair->back.wait(sent - 1, 0, kLong), sent) << "seed " << seed << " round " << round;
    }
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
}

// A process that may only read, write and exit posts: any other call would end it.
TEST(SharedSignal, PostingCallsNobodyWhereNobodySleeps) {
#ifdef LORALEI_THREAD_SANITIZER
  GTEST_SKIP() << "the sanitizer has a thread of its own, which goes on when this one has ended";
#endif
  SharedPair pair;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) ::_exit(1);
    for (uint32_t i = 1; i <= 1000; ++i) pair->there.post(i);
    ::syscall(SYS_exit, 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pair->there.value(), 1000u);
}

}  // namespace
}  // namespace loralei
