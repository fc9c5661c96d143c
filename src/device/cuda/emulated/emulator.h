// SPDX-License-Identifier: Apache-2.0
// A GPU made of host memory, for tests: the same kernels and classes run on machines
// without one. Never in a program (the library device_cuda_emulated is linked by tests
// alone; a test looks for kMarker in the release binary).
//
// What it does like a GPU, only stricter:
// - A stream is a queue whose work runs late: at a synchronisation that needs it, or one
//   piece for every event asked about, so that a missing wait reads old data.
// - Fresh memory is NaN bytes; one byte behind a device buffer (rounded up to 16) is the
//   end of the process.
// - The threads of a block are fibers that run one after another until they block, a warp
//   as far as the block's barriers let it before the next one begins: forward in one
//   block, backward in the next. So data exchanged without a barrier is read before it
//   is written (shared memory is NaN bytes at the start of a block), and data overwritten
//   without one is gone. Warps have no lockstep: __syncwarp and the warp collectives are
//   all that orders lanes.
// - A stream waits for a word in memory while others go on; nobody is let in by it.
// - A stream takes work from threads alone whose device is its own.
// - While a stream records a graph, waiting for it and allocating memory fail and end the
//   recording without a graph.
// - A barrier or collective that not all threads reach, or that they reach at different
//   places, fails the launch with both places; so does a write past the end of shared
//   memory, more shared memory than a block may have or its launch asked for, or a grid
//   beyond the limits.
//
// Thread: any; one at a time is let in (what runs late runs in the thread
// that waits for it).
// Failure: the first one is kept, with the kernel's name, and answered by every later
// call, as of a lost device (cuda_device.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <thread>

#include "base/result.h"

namespace loralei::cuda_emulated {

inline constexpr char kMarker[] = "loralei-emulated-gpu-for-tests";

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// --- streams (runtime.cc)
void enqueue(void* stream, std::function<void()> work);
void fail(std::string sentence);  // the device is lost
Status status();                  // what calls answer
// Whether work may be put on a stream: the device is not lost and is that of
// the calling thread.
Status usable(void* stream);
std::string take_failure();         // forgets it; "" where none
void refuse_captures(bool refuse);  // as a driver that cannot record a graph
// Threads that wait for an event stay there, and so does the work they wait for, until
// they are let go: a copy that takes its time.
void hold_event_waits(bool hold);
void refuse_copies_of(int64_t bytes);     // copies of so many bytes, as a driver that is out of something; -1: none
void hold_copies_of(int64_t bytes);       // a stream stands still before a copy of so many bytes; -1: before none
inline int32_t refused_product_rows = 0;  // as a library whose plan for their class does not do; 0: none
int64_t allocations();                    // of device and pinned memory so far

// While one of these is there streams run by themselves, on a thread of its own: a piece
// of one that can go on, drawn anew for each, and now and then a stream rests, for up to
// `rest_most_us`: behind every other copy, and seldom behind a kernel. Work that is
// waited for is done by that thread alone.
class RunningStreams {
 public:
  RunningStreams(uint64_t seed, int64_t rest_most_us);
  ~RunningStreams();

 private:
  std::jthread thread_;
};

// --- kernels (emulator.cc)
inline constexpr int kWarp = 32;
inline constexpr size_t kSharedMax = 227 * 1024;       // of a block, compute capability 9.0
inline constexpr size_t kStaticSharedMax = 48 * 1024;  // of its arrays declared in the kernel
inline constexpr size_t kSharedUnasked = 48 * 1024;    // of both, where the launch does not ask for more
inline constexpr unsigned kGridMax = 65'535;           // of y and z

struct SharedMemory {
  size_t dynamic_bytes = 0;
  bool asked_for_more = false;
};

// Runs `body` as every thread of every block; what goes wrong in the kernel `name`
// is told to fail().
void run_grid(const char* name, Dim3 grid, Dim3 block, const SharedMemory& shared, const std::function<void()>& body);

// Of the running thread and its block.
extern Dim3 thread_index, block_index, block_size, grid_size;
std::byte* dynamic_shared();
// The array that one declaration (named by its key's address) stands for in this block.
std::byte* static_shared(const void* key, size_t bytes);

// A copy of 16 bytes to shared memory that may take until the thread's next
// await_copies(): until then `to` is NaN bytes. Null: zeros. A thread that ends with
// copies on their way fails the launch.
void copy_later(void* to, const void* from);
void await_copies();

void block_barrier(std::source_location at = std::source_location::current());

// All lanes of `mask` give up to 32 bytes and see those of all others: [lane][8] until
// each lane's next collective.
struct WarpSlot {
  uint32_t words[8];
};
const WarpSlot* exchange(uint32_t mask, const WarpSlot& given,
                         std::source_location at = std::source_location::current());

}  // namespace loralei::cuda_emulated
