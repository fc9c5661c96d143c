// SPDX-License-Identifier: Apache-2.0
// What assist_bench holds helpers against: the same sums in this process, and in a
// process that gets x and sends the sums over a socket.
#pragma once

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "assist/assist_shape.h"
#include "base/clock.h"
#include "device/host/arena.h"
#include "ops/op_table.h"
#include "sys/threads.h"

namespace loralei {

inline constexpr int32_t kTwinRowsMax = 128;

// The product of one message in this process.
class InProcess {
 public:
  InProcess(const OpTable& table, const AssistShape& shape, const Adapter& adapter, int threads)
      : table_(table), shape_(shape), adapter_(adapter), pool_(threads) {
    const OpLimits limits{.rows_max = kTwinRowsMax,
                          .in_max = shape.in_max(),
                          .heads = 1,
                          .kv_heads = 1,
                          .head_dim = 64,
                          .rank_max = shape.rank_max,
                          .segments_max = 1,
                          .threads = threads};
    scratch_ = HostBuffer::allocate(table.scratch_bytes(limits)).value();
    ctx_.pool = &pool_;
    ctx_.scratch = scratch_.bytes();
    for (auto& sums : sums_)
      sums.resize(size_t{kTwinRowsMax} * static_cast<size_t>(*std::max_element(shape.outs.begin(), shape.outs.end())));
  }
  // Answers the bytes of the sums, side by side in sums().
  size_t compute(int32_t layer, uint32_t modules, const float* x, int32_t rows) {
    LoraSource sources[kAssistTargetsMax];
    LoraTarget targets[kAssistTargetsMax];
    size_t count = 0, bytes = 0;
    int32_t in = 0;
    for (int32_t index = 0; index < kLayerModules; ++index) {
      if ((modules >> index & 1) == 0) continue;
      const auto module = static_cast<Module>(index);
      const LoraPair& pair = adapter_.pair(layer, module);
      std::vector<float>& sums = sums_[count];
      std::fill_n(sums.begin(), rows * pair.out, -0.0f);
      sources[count].pair = &pair;
      targets[count] = {sums.data(), pair.out, &sources[count], pair.out};
      sizes_[count] = static_cast<size_t>(rows) * static_cast<size_t>(pair.out) * sizeof(float);
      bytes += sizes_[count++];
      in = pair.in;
    }
    const LoraSegment segment{0, rows, 0, 1.0f};
    table_.lora(ctx_, {x, in, in, {&segment, 1}, {targets, count}});
    count_ = count;
    return bytes;
  }
  size_t count() const { return count_; }
  std::pair<const float*, size_t> sums(size_t i) const { return {sums_[i].data(), sizes_[i]}; }

 private:
  const OpTable& table_;
  const AssistShape shape_;
  const Adapter& adapter_;
  ThreadPool pool_;
  HostBuffer scratch_;
  OpContext ctx_;
  std::vector<float> sums_[kAssistTargetsMax];
  size_t sizes_[kAssistTargetsMax] = {};
  size_t count_ = 0;
};

inline bool write_all(int socket, const void* data, size_t bytes) {
  for (const auto* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}
inline bool read_all(int socket, void* data, size_t bytes) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = ::recv(socket, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

// What goes over the socket before x.
struct TwinAsked {
  int32_t layer = 0, rows = 0, in = 0;
  uint32_t modules = 0;
};
struct TwinAnswered {
  int64_t busy_ns = 0;
  size_t bytes = 0;
};

// A process that does what a helper does, over a socket.
class SocketTwin {
 public:
  SocketTwin(const OpTable& table, const AssistShape& shape, const Adapter& adapter, int cpu) {
    int ends[2] = {};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      pin_this_thread(cpu);
      serve(ends[1], table, shape, adapter);
      std::_Exit(0);
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }
  ~SocketTwin() {
    ::close(socket_);
    ::waitpid(pid_, nullptr, 0);
  }
  int64_t ask(const TwinAsked& asked, const float* x, std::vector<float>& sums) {
    TwinAnswered answered;
    const size_t bytes = static_cast<size_t>(asked.rows) * static_cast<size_t>(asked.in) * sizeof(float);
    if (!write_all(socket_, &asked, sizeof asked) || !write_all(socket_, x, bytes) ||
        !read_all(socket_, &answered, sizeof answered) || !read_all(socket_, sums.data(), answered.bytes))
      std::abort();
    return answered.busy_ns;
  }

 private:
  static void serve(int socket, const OpTable& table, const AssistShape& shape, const Adapter& adapter) {
    InProcess lora(table, shape, adapter, 1);
    const SteadyClock clock;
    std::vector<float> x(size_t{kTwinRowsMax} * static_cast<size_t>(shape.in_max()));
    for (TwinAsked asked; read_all(socket, &asked, sizeof asked);) {
      if (!read_all(socket, x.data(), static_cast<size_t>(asked.rows) * static_cast<size_t>(asked.in) * sizeof(float)))
        return;
      const int64_t start = clock.now_ns();
      TwinAnswered answered;
      answered.bytes = lora.compute(asked.layer, asked.modules, x.data(), asked.rows);
      answered.busy_ns = clock.now_ns() - start;
      if (!write_all(socket, &answered, sizeof answered)) return;
      for (size_t i = 0; i < lora.count(); ++i)
        if (!write_all(socket, lora.sums(i).first, lora.sums(i).second)) return;
    }
  }
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace loralei
