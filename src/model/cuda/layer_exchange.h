// SPDX-License-Identifier: Apache-2.0
// LayerExchange: rows of layer inputs out of the device's memory, and what is added to
// them back into it, while stream and host go on (CaraServe §4.2, asynchronous
// invocation). One exchange is about one layer input:
//
//   stream  rows are copied out; `published`; x W; waits for `summed`; sums are added
//   host    launches all of that ahead: serve() spins on `published`, has the sums
//           computed (LayerSums), says `summed`
//
// The rows' copy and the sums lie in pinned memory, which the kernel reads as it adds.
//
// Thread: the model's.
// Ownership: owns the pinned memory; borrows the sums from begin() to close().
// Invariants: exchanges are served in their order; two at most are on the stream and not
// served, and the later one's rows come out when the earlier one's sums are in, so that
// one place for each does for both. Rows that end() let go are never served.
// Failure: Status of the launches; `look` of serve(), which is asked while the host
// waits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/stream_gate.h"
#include "model/cuda/cuda_products.h"
#include "model/layer_sums.h"

namespace loralei {

class LayerExchange {
 public:
  static constexpr size_t kModules = 3;  // that read one layer input
  struct Options {
    int32_t rows_max = 0;  // of an exchange; 0: there are none
    int32_t in_max = 0;
    int32_t outs_max = 0;  // of all modules that read one layer input
  };
  LayerExchange() = default;  // of no rows
  static int64_t host_bytes(const Options& options);
  static Result<LayerExchange> create(const Options& options);
  int32_t rows_max() const { return options_.rows_max; }

  // A step. The stream is done with the one before.
  void begin(LayerSums* sums);

  // One more exchange: open, rows of adapters, publish; behind the product, add.
  void open(int32_t layer, const CudaInput& input);
  // Of [row_begin, row_begin + row_count), for those of the products that `modules` names
  // (kNone: not that one).
  static constexpr int kNone = -1;
  void take(AdapterVersionId version, const LoraSegment& segment, std::span<const CudaProduct> products,
            std::span<const int> modules);
  Status publish(CudaStream& stream);
  Status add(CudaStream& stream, std::span<const CudaProduct> products);

  uint32_t published() const { return opened_; }
  // Those up to and with `number`. look() is asked now and then while the stream has not
  // got there; its error ends the wait.
  template <typename Look>
  Status serve(uint32_t number, Look&& look) {
    while (served_ < number) {
      int waits = 0;
      while (out_->there.load(std::memory_order_acquire) <= served_) {
        if (++waits % kSpins != 0) continue;
        TRY(look());
        if (waits >= kSpinsMost) std::this_thread::sleep_for(kNap);
      }
      compute(exchanges_[served_ % 2]);
      ++served_;
      gates_[kSummed].there.store(served_, std::memory_order_release);
    }
    return {};
  }
  void end() const;  // nothing on the stream waits for sums any more
  void close();      // the stream is done

 private:
  static constexpr int32_t kPublished = 0, kSummed = 1, kGates = 2;  // of gates_
  static constexpr int kSpins = 32, kSpinsMost = 20'000;
  static constexpr auto kNap = std::chrono::microseconds(20);
  struct Part {
    AdapterVersionId version;
    LoraSegment rows, own_rows;  // of the step; of what was copied out
    int64_t x_bytes = 0;         // where they lie there
    size_t count = 0;            // of modules
    std::array<Module, kModules> modules{};
    std::array<size_t, kModules> products{};
    std::array<LoraTarget, kModules> targets{};
  };
  struct Exchange {
    int32_t layer = 0;
    CudaInput input;
    std::vector<Part> parts;
    int64_t x_bytes = 0, floats = 0;  // taken
  };
  void compute(const Exchange& exchange);
  Exchange& latest() { return exchanges_[(opened_ - 1) % 2]; }

  Options options_;
  StreamGates gates_;
  StreamGate* out_ = nullptr;
  PinnedBuffer rows_, results_;
  std::vector<float> x_;  // of rows that are no f32
  std::array<Exchange, 2> exchanges_;
  std::vector<LayerSumsPart> asked_;
  LayerSums* sums_ = nullptr;
  uint32_t opened_ = 0, served_ = 0;  // in this step
};

}  // namespace loralei
