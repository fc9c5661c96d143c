// SPDX-License-Identifier: Apache-2.0
// For tests of what happens on other threads: waits until it has.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

namespace loralei::test {

inline void until(const std::function<bool()>& so) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!so()) {
    ASSERT_LT(std::chrono::steady_clock::now(), patience) << "it never came";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace loralei::test
