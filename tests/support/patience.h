// SPDX-License-Identifier: Apache-2.0
// What tests of things that happen beside them share: a seed that is printed,
// and patience.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

namespace loralei::test {

// The environment's, or `usual`; printed.
inline uint64_t seed_of_run(const char* variable, uint64_t usual = 2024) {
  const char* given = std::getenv(variable);
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : usual;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

inline void until(const std::function<bool()>& done) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!done()) {
    ASSERT_LT(std::chrono::steady_clock::now(), patience);
    std::this_thread::yield();
  }
}

}  // namespace loralei::test
