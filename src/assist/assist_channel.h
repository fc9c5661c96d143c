// SPDX-License-Identifier: Apache-2.0
// AssistChannel: the memory over which one helper gets layer inputs and gives sums, as
// the two processes see it.
//
//   header | x [rows_max, x_stride] | sums, for each module [rows_max, sums_stride]
//
// Modules of different groups (assist_shape.h) share their sums' place: a message is
// about one group.
//
// Thread: a side has one thread that writes its part of the header. x and sums belong to
// the parent until a request is posted and to the helper until it is answered.
// Ownership: its SharedMemory. A channel belongs to one process's life: a helper that is
// replaced gets a new one.
// Invariants: places follow from the header's sizes alone (AssistLayout). A number that
// the other side writes is read once and checked before it is used.
// Failure: open() says which number is wrong; another version is refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "assist/assist_shape.h"
#include "base/result.h"
#include "sys/shared_memory.h"
#include "sys/shared_signal.h"

namespace loralei {

inline constexpr uint32_t kAssistMagic = 0x5453534c;  // "LSST"
// Raised with every change of the header, the control messages or the factor table.
inline constexpr uint32_t kAssistVersion = 2;
inline constexpr int32_t kAssistRowsMax = 1 << 16;

enum class AssistAnswer : uint32_t { kNone = 0, kDone, kRefused };

// What the parent asks for. `generation` is written last.
struct AssistRequest {
  std::atomic<uint32_t> generation;  // of the message; the answer has the same
  std::atomic<uint32_t> controls;    // control messages that were sent before
  std::atomic<uint64_t> version;     // of the adapter
  std::atomic<int32_t> layer;
  std::atomic<uint32_t> modules;  // a mask
  std::atomic<int32_t> rows;
};

struct AssistHeader {
  uint32_t magic, version;
  int64_t bytes;  // of the whole channel
  AssistShape shape;
  int32_t rows_max;
  int32_t cpu;  // -1: the helper is not bound to one
  int64_t spin_ns;
  char ops_table[32];  // with its end

  alignas(64) AssistRequest request;
  SharedSignal asks;                         // raised with a request, and with a control message
  alignas(64) std::atomic<uint32_t> answer;  // an AssistAnswer
  std::atomic<int64_t> busy_ns;              // the request took
  SharedSignal done;                         // generation of the last request that was answered
};

// Where things lie; a pure function of sizes that are in their limits.
struct AssistLayout {
  int64_t x_stride = 0, x_offset = 0, bytes = 0;
  std::array<int64_t, kLayerModules> sums_stride{}, sums_offset{};
};
AssistLayout assist_layout(const AssistShape& shape, int32_t rows_max);

class AssistChannel {
 public:
  struct Settings {
    AssistShape shape;
    int32_t rows_max = 0;
    int32_t cpu = -1;
    int64_t spin_ns = 0;
    std::string ops_table;
  };
  static Result<AssistChannel> create(const std::string& name, const Settings& settings);
  static Result<AssistChannel> open(Descriptor descriptor);

  AssistHeader& header() const { return *header_; }
  const Settings& settings() const { return settings_; }  // read and checked once
  float* x(int64_t row) const { return floats(layout_.x_offset) + row * layout_.x_stride; }
  int64_t x_stride() const { return layout_.x_stride; }
  float* sums(Module module) const { return floats(layout_.sums_offset[static_cast<size_t>(module)]); }
  int64_t sums_stride(Module module) const { return layout_.sums_stride[static_cast<size_t>(module)]; }
  int descriptor() const { return memory_.descriptor(); }

 private:
  float* floats(int64_t offset) const { return reinterpret_cast<float*>(memory_.data() + offset); }

  SharedMemory memory_;
  AssistHeader* header_ = nullptr;
  Settings settings_;
  AssistLayout layout_;
};

// Numbers of a channel are in their limits, so that its layout can be computed.
Status check_assist_settings(const AssistChannel::Settings& settings);

}  // namespace loralei
