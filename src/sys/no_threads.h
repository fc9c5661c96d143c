// SPDX-License-Identifier: Apache-2.0
// NoThreads, for tests: while it lives, the system refuses this process every new thread,
// as it does where their number is limited: each is to have a stack larger than all
// addresses there are.
#pragma once

#include <pthread.h>

#include <cstddef>

#include "base/check.h"

namespace loralei {

class NoThreads {
 public:
  NoThreads() {
    CHECK(pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t none;
    CHECK(pthread_attr_init(&none) == 0);
    CHECK(pthread_attr_setstacksize(&none, size_t{1} << 60) == 0);
    CHECK(pthread_setattr_default_np(&none) == 0);
    pthread_attr_destroy(&none);
  }
  ~NoThreads() {
    CHECK(pthread_setattr_default_np(&before_) == 0);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace loralei
