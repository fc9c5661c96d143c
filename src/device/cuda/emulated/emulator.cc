// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/emulated/emulator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"

#ifndef LORALEI_CUDA_EMULATION
#error "The emulated GPU is for tests: link device_cuda_emulated."
#endif

// Saves the callee-saved registers and the stack pointer of this fiber, and
// continues another one.
extern "C" void loralei_fiber_switch(void** saved, void* next);
asm(R"(
.text
.type loralei_fiber_switch,@function
loralei_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size loralei_fiber_switch,.-loralei_fiber_switch
)");

namespace loralei::cuda_emulated {

Dim3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t kThreadsMax = 1024, kStackBytes = 64 * 1024, kGuardBytes = 64;
enum class State : uint8_t { kReady, kAtBarrier, kAtCollective, kDone };

struct LateCopy {
  void* to;
  const void* from;
};

struct Fiber {
  void* stack_pointer;
  Dim3 index;
  State state;
  std::source_location at;
  std::vector<LateCopy> copies;
};

struct Warp {
  WarpSlot slots[2][kWarp];
  uint32_t arrived, mask;
  unsigned generation;
  std::source_location at;
};

struct SharedArray {
  const void* key;
  size_t offset, bytes;
};

struct Machine {
  std::vector<Fiber> fibers{kThreadsMax};
  std::vector<Warp> warps{kThreadsMax / kWarp};
  std::unique_ptr<std::byte[]> stacks{new std::byte[kThreadsMax * kStackBytes]};
  std::vector<std::byte> dynamic, fixed;
  std::vector<SharedArray> arrays;
  size_t threads = 0, current = 0, fixed_used = 0, dynamic_bytes = 0, shared_max = 0;
  void* scheduler = nullptr;
  const std::function<void()>* body = nullptr;
  std::string failure;
  unsigned launches = 0;
};
Machine& machine() {
  static Machine instance;
  return instance;
}

std::string place(const std::source_location& at) {
  const std::string file = at.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(at.line());
}

void stop(const std::string& what) {
  Machine& m = machine();
  if (m.failure.empty()) {
    m.failure = what + " (block " + std::to_string(block_index.x) + "," + std::to_string(block_index.y) + "," +
                std::to_string(block_index.z) + ")";
  }
}

void yield() {
  Machine& m = machine();
  loralei_fiber_switch(&m.fibers[m.current].stack_pointer, m.scheduler);
}

void fiber_main() {
  Machine& m = machine();
  (*m.body)();
  if (!m.fibers[m.current].copies.empty()) stop("a thread ended without waiting for its copies");
  m.fibers[m.current].state = State::kDone;
  yield();
  std::abort();  // a fiber that is done is not continued
}

void start_fiber(size_t i) {
  Machine& m = machine();
  auto top = reinterpret_cast<uintptr_t>(m.stacks.get() + (i + 1) * kStackBytes) & ~uintptr_t{63};
  auto* stack = reinterpret_cast<void**>(top - 64);  // six registers, then where `ret` goes
  std::memset(static_cast<void*>(stack), 0, 64);
  stack[6] = reinterpret_cast<void*>(&fiber_main);
  Fiber& fiber = m.fibers[i];
  fiber.stack_pointer = stack;
  fiber.state = State::kReady;
  fiber.copies.clear();
  const auto id = static_cast<unsigned>(i);
  fiber.index = {id % block_size.x, id / block_size.x % block_size.y, id / block_size.x / block_size.y};
}

void resume(size_t i) {
  Machine& m = machine();
  m.current = i;
  thread_index = m.fibers[i].index;
  loralei_fiber_switch(&m.scheduler, m.fibers[i].stack_pointer);
}

// Every live thread must be at one barrier in one place. Returns whether threads
// were released.
bool release_barrier() {
  Machine& m = machine();
  const Fiber* first = nullptr;
  for (size_t i = 0; i < m.threads; ++i) {
    const Fiber& fiber = m.fibers[i];
    if (fiber.state == State::kDone) continue;
    if (first == nullptr) first = &fiber;
    if (fiber.state != State::kAtBarrier || first->state != State::kAtBarrier || fiber.at.line() != first->at.line()) {
      stop("divergent barrier: some threads wait at " + place(first->at) + ", others at " + place(fiber.at));
      return false;
    }
  }
  for (size_t i = 0; i < m.threads; ++i) {
    if (m.fibers[i].state != State::kDone) m.fibers[i].state = State::kReady;
  }
  return first != nullptr;
}

void check_guard(const std::byte* guard, const char* what) {
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != std::byte{0xFF}) return stop(std::string("a write past the end of ") + what + " shared memory");
  }
}

void run_block(bool backward) {
  Machine& m = machine();
  std::memset(m.dynamic.data(), 0xFF, m.dynamic.size());
  std::memset(m.fixed.data(), 0xFF, m.fixed.size());
  m.arrays.clear();
  m.fixed_used = 0;
  for (size_t i = 0; i < m.threads; ++i) start_fiber(i);
  for (size_t w = 0; w * kWarp < m.threads; ++w) m.warps[w].arrived = 0, m.warps[w].generation = 0;
  // A warp runs on until all its lanes wait for the block, so that warps are as far apart
  // as barriers let them.
  const size_t warps = (m.threads + kWarp - 1) / kWarp;
  for (size_t done = 0; m.failure.empty() && done < m.threads;) {
    bool any = false;
    for (size_t w = 0; w < warps; ++w) {
      const size_t first = (backward ? warps - 1 - w : w) * kWarp, count = std::min<size_t>(kWarp, m.threads - first);
      for (bool ran = true; ran && m.failure.empty();) {
        ran = false;
        for (size_t n = 0; n < count && m.failure.empty(); ++n) {
          const size_t i = first + (backward ? count - 1 - n : n);
          if (m.fibers[i].state != State::kReady) continue;
          any = ran = true;
          resume(i);
          if (m.fibers[i].state == State::kDone) ++done;
        }
      }
    }
    if (done < m.threads && !any && !release_barrier()) break;
  }
  size_t shared_bytes = m.dynamic_bytes;
  for (const SharedArray& array : m.arrays) shared_bytes += array.bytes;
  if (shared_bytes > m.shared_max) stop("a block with " + std::to_string(shared_bytes) + " bytes of shared memory");
  check_guard(m.dynamic.data() + m.dynamic_bytes, "dynamic");
  for (const SharedArray& array : m.arrays) check_guard(m.fixed.data() + array.offset + array.bytes, "static");
}

}  // namespace

void run_grid(const char* name, Dim3 grid, Dim3 block, const SharedMemory& shared, const std::function<void()>& body) {
  const auto fail_here = [name](const std::string& what) { fail("kernel " + std::string(name) + ": " + what); };
  Machine& m = machine();
  m.failure.clear();
  m.threads = size_t{block.x} * block.y * block.z;
  if (m.threads == 0 || m.threads > kThreadsMax)
    return fail_here("a block of " + std::to_string(m.threads) + " threads");
  if (grid.y > kGridMax || grid.z > kGridMax)
    return fail_here("a grid of " + std::to_string(grid.y) + " by " + std::to_string(grid.z) + " blocks in y and z");
  m.body = &body;
  m.dynamic_bytes = shared.dynamic_bytes;
  m.shared_max = shared.asked_for_more ? kSharedMax : kSharedUnasked;
  m.dynamic.resize(m.dynamic_bytes + kGuardBytes);
  m.fixed.resize(kStaticSharedMax + 64 * kGuardBytes);
  block_size = block;
  grid_size = grid;
  bool backward = ++m.launches % 2 == 0;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x, backward = !backward) {
        block_index = {x, y, z};
        run_block(backward);
        if (!m.failure.empty()) return fail_here(m.failure);
      }
    }
  }
}

std::byte* dynamic_shared() { return machine().dynamic.data(); }

std::byte* static_shared(const void* key, size_t bytes) {
  Machine& m = machine();
  for (const SharedArray& array : m.arrays) {
    if (array.key == key) return m.fixed.data() + array.offset;
  }
  const size_t rounded = (bytes + 15) / 16 * 16;
  CHECK(m.fixed_used + rounded + kGuardBytes <= m.fixed.size());
  m.arrays.push_back({key, m.fixed_used, bytes});
  m.fixed_used += rounded + kGuardBytes;
  return m.fixed.data() + m.arrays.back().offset;
}

void copy_later(void* to, const void* from) {
  std::memset(to, 0xFF, 16);
  Machine& m = machine();
  m.fibers[m.current].copies.push_back({to, from});
}

void await_copies() {
  Machine& m = machine();
  for (const LateCopy& copy : m.fibers[m.current].copies) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, 16);
    } else {
      std::memcpy(copy.to, copy.from, 16);
    }
  }
  m.fibers[m.current].copies.clear();
}

void block_barrier(std::source_location at) {
  Machine& m = machine();
  m.fibers[m.current].state = State::kAtBarrier;
  m.fibers[m.current].at = at;
  yield();
}

const WarpSlot* exchange(uint32_t mask, const WarpSlot& given, std::source_location at) {
  Machine& m = machine();
  const size_t lane = m.current % kWarp, first = m.current - lane;
  Warp& warp = m.warps[m.current / kWarp];
  m.fibers[m.current].at = at;
  if (warp.arrived == 0) {
    warp.mask = mask;
    warp.at = at;
  }
  if (warp.mask != mask || (mask >> lane & 1) == 0 || warp.at.line() != at.line()) {
    stop("lanes of one warp meet in different collectives: " + place(warp.at) + " and " + place(at));
  }
  WarpSlot* slots = warp.slots[warp.generation & 1];
  slots[lane] = given;
  warp.arrived |= uint32_t{1} << lane;
  if (warp.arrived == mask) {  // the last one lets the others go
    warp.arrived = 0;
    ++warp.generation;
    for (size_t i = 0; i < kWarp; ++i) {
      if ((mask >> i & 1) != 0) m.fibers[first + i].state = State::kReady;
    }
  } else {
    m.fibers[m.current].state = State::kAtCollective;
    yield();
  }
  return slots;
}

}  // namespace loralei::cuda_emulated
