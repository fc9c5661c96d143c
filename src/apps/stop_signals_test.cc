// SPDX-License-Identifier: Apache-2.0
// Each in a process of its own, which a signal that nobody takes would end otherwise
// than is expected.
#include "apps/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace loralei {
namespace {

class StopSignalsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  NullLogSink log;
};

constexpr int64_t kLongMs = 600'000;

[[noreturn]] void sleep_for_good() {
  for (;;) ::pause();
}

TEST_F(StopSignalsDeathTest, OneSignalEndsAStart) {
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(
        {
          StopSignals signals(log);
          ::kill(::getpid(), signal);
          sleep_for_good();
        },
        testing::ExitedWithCode(128 + signal), "");
  }
}

TEST_F(StopSignalsDeathTest, AServerIsToldOfTheFirstAndEndedByTheSecond) {
  EXPECT_EXIT(
      {
        StopSignals signals(log);
        ::kill(::getpid(), SIGHUP);
        signals.serving(kLongMs);
        if (signals.wait() != StopSignals::Event::kRescan) std::_Exit(1);
        ::kill(::getpid(), SIGTERM);
        if (signals.wait() != StopSignals::Event::kEnd) std::_Exit(2);
        ::kill(::getpid(), SIGINT);
        sleep_for_good();
      },
      testing::ExitedWithCode(130), "");
}

TEST_F(StopSignalsDeathTest, TheEndComesInTimeWhateverOthersDo) {
  EXPECT_EXIT(
      {
        StopSignals signals(log);
        signals.serving(10);
        ::kill(::getpid(), SIGTERM);
        if (signals.wait() != StopSignals::Event::kEnd) std::_Exit(2);
        sleep_for_good();  // as a thread that is joined and does not end
      },
      testing::ExitedWithCode(kExitTimedOut), "");
}

TEST_F(StopSignalsDeathTest, NorDoesARescanThatHangsHoldItUp) {
  EXPECT_EXIT(
      {
        StopSignals signals(log);
        signals.serving(10);
        ::kill(::getpid(), SIGHUP);
        if (signals.wait() != StopSignals::Event::kRescan) std::_Exit(1);
        ::kill(::getpid(), SIGTERM);
        sleep_for_good();
      },
      testing::ExitedWithCode(kExitTimedOut), "");
}

TEST_F(StopSignalsDeathTest, AnEndInTimeIsLeftAlone) {
  EXPECT_EXIT(
      {
        {
          StopSignals signals(log);
          signals.serving(kLongMs);
          ::kill(::getpid(), SIGTERM);
          signals.wait();
          ::kill(::getpid(), SIGHUP);  // says nothing any more
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(StopSignalsDeathTest, AStartThatFailsIsNotHeldUp) {
  EXPECT_EXIT(
      {
        { const StopSignals signals(log); }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace loralei
