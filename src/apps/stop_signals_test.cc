// SPDX-License-Identifier: Apache-2.0
// Each in a process of its own, which a signal that nobody takes would end otherwise than is expected.
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
        signals.serving();
        if (signals.wait() != StopSignals::Event::kRescan) std::_Exit(1);
        ::kill(::getpid(), SIGTERM);
        if (signals.wait() != StopSignals::Event::kEnd) std::_Exit(2);
        ::kill(::getpid(), SIGINT);
        sleep_for_good();
      },
      testing::ExitedWithCode(130), "");
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
