// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnccl.so.2, for ranks that are threads of one process on emulated
// GPUs: a shared object that a test opens as NcclLibrary does (fake_nccl() in it), with
// faults. It answers as the library does that does not block: connecting takes until all
// ranks ask for it, numbers arrive when the streams get there, and a rank that is aborted
// lets its own stream go.
//
// Thread: any. A test sets `streams` before anybody connects.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace loralei::test {

// Of the emulated GPU, which the test's program has and the shared object has not.
struct FakeStreams {
  void (*enqueue)(void* stream, std::function<void()> work) = nullptr;
  void (*wait_for)(void* stream, const void* word, uint64_t at_least) = nullptr;
};

struct FakeNccl {
  FakeStreams streams;
  std::atomic<int> version{2'30'07};
  // Of a rank: what it is answered, and when; -1: of none.
  std::atomic<int> faulty_rank{-1};
  std::atomic<int> answer_to_connect{0};  // 7: it goes on connecting for ever
  std::atomic<int> gathers_before{0};     // that go well; the next is answered so:
  std::atomic<int> answer_to_gather{0};   // 7: it is taken, and never does anything
  std::atomic<int> error_behind{0};       // what this rank's communicator says from that one on
  // Since reset().
  std::atomic<int> connected{0}, gathers{0}, aborted{0};

  void reset() {
    version = 2'30'07, faulty_rank = -1;
    answer_to_connect = gathers_before = answer_to_gather = error_behind = 0;
    connected = gathers = aborted = 0;
  }
};

}  // namespace loralei::test
