// SPDX-License-Identifier: Apache-2.0
// A rank's NcclDeviceGroup in a test: over the stand-in on emulated GPUs, else over the
// machine's NCCL, which wants a GPU for every rank.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "device/cuda/cuda_device.h"
#include "model/cuda/nccl_device_group.h"
#include "support/fake_nccl.h"

#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#include "device/cuda/runtime.h"
#endif

namespace loralei::test {

#ifdef LORALEI_CUDA_EMULATION

// The stand-in's state.
inline FakeNccl& fake_nccl_state() {
  static FakeNccl* const only = [] {
    void* const file = dlopen(LORALEI_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(file, nullptr) << dlerror();
    auto* const state = reinterpret_cast<FakeNccl* (*)()>(dlsym(file, "fake_nccl"))();
    state->streams.enqueue = [](void* stream, std::function<void()> work) {
      cuda_emulated::enqueue(stream, std::move(work));
    };
    state->streams.wait_for = [](void* stream, const void* word, uint64_t at_least) {
      EXPECT_TRUE(cuda_runtime::wait_for_word(stream, word, at_least).ok());
    };
    return state;
  }();
  return *only;
}

inline NcclDeviceGroup::Options nccl_options() {
  (void)fake_nccl_state();
  return {.library = LORALEI_FAKE_NCCL};
}
inline bool has_nccl(int /*ranks*/) { return true; }

#else

inline NcclDeviceGroup::Options nccl_options() { return {}; }
inline bool has_nccl(int ranks) { return static_cast<int>(cuda_devices().list.size()) >= ranks; }

#endif

inline Result<std::unique_ptr<DeviceGroup>> nccl_group(Collective& hosts, const NcclDeviceGroup::Options& options) {
  TRY_ASSIGN(std::unique_ptr<NcclDeviceGroup> group, NcclDeviceGroup::create(hosts, options));
  return std::unique_ptr<DeviceGroup>(std::move(group));
}

}  // namespace loralei::test
