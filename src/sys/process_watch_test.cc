// SPDX-License-Identifier: Apache-2.0
#include "sys/process_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>

namespace loralei {
namespace {

// A process that sleeps until it is told to end.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  ~Sleeper() { end(); }
  int pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  int pid_;
};

class Ends {
 public:
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.push_back(name);
    changed_.notify_all();
  }
  std::vector<std::string> wait(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return names_.size() >= count; });
    return names_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> names_;
};

TEST(ProcessWatch, TellsWhoEndedAndNothingOfThoseForgottenOrReplaced) {
  Ends ends;
  Sleeper first, second, third, forgotten, replaced;
  auto watch = std::move(ProcessWatch::create([&](const std::string& name, int) { ends.add(name); })).value();
  ASSERT_TRUE(watch->watch("first", first.pid()).ok());
  ASSERT_TRUE(watch->watch("second", second.pid()).ok());
  ASSERT_TRUE(watch->watch("forgotten", forgotten.pid()).ok());
  ASSERT_TRUE(watch->watch("third", replaced.pid()).ok());
  ASSERT_TRUE(watch->watch("third", third.pid()).ok());
  EXPECT_EQ(watch->watched().size(), 4u);
  EXPECT_EQ(watch->watched().at("third"), third.pid());
  watch->forget("forgotten");
  forgotten.end();
  replaced.end();
  second.end();
  EXPECT_EQ(ends.wait(1), std::vector<std::string>{"second"});
  third.end();
  EXPECT_EQ(ends.wait(2), (std::vector<std::string>{"second", "third"}));
  EXPECT_EQ(watch->watched().size(), 1u);
  watch.reset();  // while one is watched
  first.end();
  EXPECT_EQ(ends.wait(0).size(), 2u);
}

TEST(ProcessWatch, SaysWhichProcessThereIsNot) {
  auto watch = std::move(ProcessWatch::create([](const std::string&, int) {})).value();
  Sleeper gone;
  const int pid = gone.pid();
  gone.end();
  const Status none = watch->watch("a", pid);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(none.error().message, "there is no process " + std::to_string(pid) + " on this machine");
  EXPECT_FALSE(watch->watch("a", 0).ok());
  EXPECT_FALSE(watch->watch("a", -5).ok());
  EXPECT_TRUE(watch->watched().empty());
}

TEST(ProcessWatch, SoManyAreWatched) {
  auto watch = std::move(ProcessWatch::create([](const std::string&, int) {})).value();
  const int self = ::getpid();
  for (size_t i = 0; i < ProcessWatch::kMost; ++i) ASSERT_TRUE(watch->watch(std::to_string(i), self).ok());
  const Status refused = watch->watch("one more", self);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  EXPECT_TRUE(watch->watch("0", self).ok()) << "in the place of the one it has";
  watch->forget("1");
  EXPECT_TRUE(watch->watch("one more", self).ok());
}

}  // namespace
}  // namespace loralei
