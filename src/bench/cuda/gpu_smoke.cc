// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu_smoke.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/generate.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"
#include "device/host/thread_pool.h"
#include "formats/base_model.h"
#include "kv/kv_cache.h"
#include "memory/ledger.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/step_graphs.h"
#include "model/model.h"
#include "ops/cuda/cuda_probe.h"
#include "ops/cuda/gemm.h"
#include "tensor/codec.h"
#include "weights/weight_store.h"

namespace loralei {
namespace {

using Found = Result<std::string>;

// Its words are 1, 2, 3 ...
void count_up(const PinnedBuffer& buffer) {
  for (int64_t i = 0; i < buffer.size_bytes() / 4; ++i) {
    const auto word = static_cast<uint32_t>(i + 1);
    std::memcpy(buffer.data() + 4 * i, &word, sizeof word);
  }
}

uint32_t sum_up_to(int64_t words) { return static_cast<uint32_t>(words * (words + 1) / 2); }

// Whatever a layer ended with, its memory goes when nothing on the stream
// uses it any more.
struct WaitsAtEnd {
  const CudaStream& stream;
  ~WaitsAtEnd() {
    if (stream.handle() != nullptr) (void)stream.synchronize();
  }
};

Found device_is_there(int ordinal) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) return unsupported(devices.reason);
  if (ordinal < 0 || ordinal >= std::ssize(devices.list)) {
    return invalid_argument("There is no GPU " + std::to_string(ordinal) + ": this machine has " +
                            std::to_string(devices.list.size()) + ".");
  }
  TRY(set_cuda_device(ordinal));
  TRY_ASSIGN(const CudaMemoryInfo memory, cuda_memory_info());
  const CudaDeviceInfo& info = devices.list[static_cast<size_t>(ordinal)];
  return info.name + ", compute capability " + std::to_string(info.capability_major) + "." +
         std::to_string(info.capability_minor) + ", " + std::to_string(info.multiprocessors) + " multiprocessors, " +
         format_bytes(memory.free_bytes) + " of " + format_bytes(memory.total_bytes) + " free";
}

Found copies() {
  constexpr int64_t kBytes = 4 * kMiB;
  TRY_ASSIGN(CudaStream stream, CudaStream::create());
  TRY_ASSIGN(PinnedBuffer from, PinnedBuffer::allocate(kBytes));
  TRY_ASSIGN(PinnedBuffer back, PinnedBuffer::allocate(kBytes));
  TRY_ASSIGN(const DeviceBuffer first, DeviceBuffer::allocate(kBytes));
  TRY_ASSIGN(const DeviceBuffer second, DeviceBuffer::allocate(kBytes));
  const WaitsAtEnd waits{stream};
  count_up(from);
  TRY(copy_to_device(first.data(), from.data(), kBytes, stream));
  TRY(copy_on_device(second.data(), first.data(), kBytes, stream));
  TRY(copy_to_host(back.data(), second.data(), kBytes, stream));
  TRY(stream.synchronize());
  if (std::memcmp(from.data(), back.data(), kBytes) != 0) return internal_error("What came back is not what was sent.");
  return format_bytes(kBytes) + " came back as they were";
}

// Memory whose words are 1, 2, 3 ..., and a place for their sum.
struct Summed {
  static constexpr int64_t kWords = 1 << 20;
  CudaStream stream;
  PinnedBuffer words, sum_back;
  DeviceBuffer memory, sum;
  WaitsAtEnd waits{stream};

  Status open() {
    TRY_ASSIGN(stream, CudaStream::create());
    TRY_ASSIGN(words, PinnedBuffer::allocate(4 * kWords));
    TRY_ASSIGN(sum_back, PinnedBuffer::allocate(4));
    TRY_ASSIGN(memory, DeviceBuffer::allocate(4 * kWords));
    TRY_ASSIGN(sum, DeviceBuffer::allocate(4));
    count_up(words);
    TRY(copy_to_device(memory.data(), words.data(), 4 * kWords, stream));
    TRY(fill_on_device(sum.data(), 0, 4, stream));
    return stream.synchronize();
  }
  Status add() { return cuda::read_words(stream, memory.data(), 4 * kWords, reinterpret_cast<uint32_t*>(sum.data())); }
  // Of what was added so many times.
  Status check(uint32_t times) {
    TRY(copy_to_host(sum_back.data(), sum.data(), 4, stream));
    TRY(stream.synchronize());
    uint32_t got = 0;
    std::memcpy(&got, sum_back.data(), sizeof got);
    if (got == times * sum_up_to(kWords)) return {};
    return internal_error("The sum is " + std::to_string(got) + " and should be " +
                          std::to_string(times * sum_up_to(kWords)) + ".");
  }
};

Found kernel_runs() {
  Summed summed;
  TRY(summed.open());
  TRY(summed.add());
  TRY(summed.check(1));
  return std::to_string(Summed::kWords) + " words read and summed up";
}

Found graph_runs() {
  Summed summed;
  TRY(summed.open());
  TRY(summed.add());  // what the driver loads at a first launch
  CudaGraph graph;
  TRY(graph.begin_capture(summed.stream));
  const Status added = summed.add();
  TRY(graph.end_capture(summed.stream));
  TRY(added);
  for (int i = 0; i < 3; ++i) TRY(graph.launch(summed.stream));
  TRY(summed.check(4));
  return std::string("recorded once, run three times");
}

// Small whole numbers: every sum is exact.
Found product_is_right() {
  constexpr int32_t kRows = 48, kIn = 128, kOut = 64;
  const auto number = [](int64_t i) { return static_cast<float>(i * 7 % 9 - 4); };
  TRY_ASSIGN(CudaStream stream, CudaStream::create());
  TRY_ASSIGN(PinnedBuffer sent, PinnedBuffer::allocate(2 * kIn * (kRows + kOut)));
  TRY_ASSIGN(PinnedBuffer back, PinnedBuffer::allocate(4 * kRows * kOut));
  TRY_ASSIGN(const DeviceBuffer in, DeviceBuffer::allocate(sent.size_bytes()));
  TRY_ASSIGN(const DeviceBuffer out, DeviceBuffer::allocate(back.size_bytes()));
  TRY_ASSIGN(cuda::Gemm gemm, cuda::Gemm::open());
  const WaitsAtEnd waits{stream};
  for (int64_t i = 0; i < sent.size_bytes() / 2; ++i) {
    const uint16_t bits = f32_to_bf16(number(i));
    std::memcpy(sent.data() + 2 * i, &bits, sizeof bits);
  }
  TRY(copy_to_device(in.data(), sent.data(), sent.size_bytes(), stream));
  TRY(gemm.run(stream, {.shape = {.in = kIn, .out = kOut},
                        .x = in.data(),
                        .x_stride = kIn,
                        .rows = kRows,
                        .w = in.data() + 2 * kIn * kRows,
                        .y = out.data(),
                        .y_stride = kOut}));
  TRY(copy_to_host(back.data(), out.data(), back.size_bytes(), stream));
  TRY(stream.synchronize());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t o = 0; o < kOut; ++o) {
      float want = 0, got = 0;
      for (int64_t i = 0; i < kIn; ++i) want += number(row * kIn + i) * number((kRows + o) * kIn + i);
      std::memcpy(&got, back.data() + 4 * (row * kOut + o), sizeof got);
      if (got != want) {
        return internal_error("Number [" + std::to_string(row) + ", " + std::to_string(o) + "] is " +
                              std::to_string(got) + " and should be " + std::to_string(want) + ".");
      }
    }
  }
  return "[" + std::to_string(kRows) + ", " + std::to_string(kIn) + "] times [" + std::to_string(kIn) + ", " +
         std::to_string(kOut) + "] in bf16";
}

// One model on the cores and on the device, and one sequence.
class Twins {
 public:
  Status open(const GpuSmokeOptions& options) {
    TRY_ASSIGN(const std::string path, generated_model(options.cache_dir, "llama-nano", "bf16", {}));
    TRY_ASSIGN(file_, open_base_model(path));
    TRY_ASSIGN(weights_, WeightStore::load(file_, ledger_, {}));
    TRY_ASSIGN(const OpTable* const ops, select_op_table("", Bf16Inputs::kExact));
    const ModelConfig& config = file_.config;
    ModelLimits limits;
    limits.rows_max = limits.logits_rows_max = kTokens;
    limits.max_model_len = kTokens;
    TRY_ASSIGN(host_, Model::create(config, *weights_, *ops, pool_, limits));
    TRY_ASSIGN(
        host_kv_,
        KvCache::create(
            {.layers = config.layers, .kv_heads = config.kv_heads, .head_dim = config.head_dim, .dtype = DType::kBF16},
            kBlocks, false, ledger_, clock_));
    CudaModelOptions cuda;
    cuda.device = options.device;
    cuda.limits = limits;
    TRY_ASSIGN(device_, CudaModel::create(config, *weights_, cuda));
    TRY_ASSIGN(device_kv_, CudaKv::create(config, DType::kBF16, kBlocks));
    return {};
  }
  bool is_open() const { return device_kv_.blocks() > 0; }
  std::string uploaded() const { return format_bytes(device_->device_bytes()) + " on the device"; }

  Found step() {
    constexpr int32_t kPrompt = 20;
    TRY(run(0, kPrompt));
    TRY(run(kPrompt, 1));
    // Inputs of products are bf16 there and f32 here.
    double largest = 0, apart = 0;
    for (size_t i = 0; i < host_logits_.size(); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(host_logits_[i])));
      const double here = std::fabs(static_cast<double>(host_logits_[i]) - static_cast<double>(device_logits_[i]));
      apart = std::isnan(here) ? INFINITY : std::max(apart, here);
    }
    const std::string share = std::to_string(apart / largest) + " of the largest";
    if (!(apart <= kTolerance * largest)) {
      return internal_error("The logits of the GPU are not those of the cores: " + share + " logit lies between them.");
    }
    return "logits are the cores' but for " + share;
  }

  Found recorded_step() {
    constexpr int32_t kPosition = 30;
    TRY(run(0, kPosition));
    TRY(run(kPosition, 1));  // plainly, or a shape that was seen before
    const std::vector<float> plain = device_logits_;
    for (int i = 0; i < 3; ++i) {
      TRY(run(kPosition, 1));
      if (device_logits_ == plain) continue;
      return internal_error("Logits changed when the same step was run again, number " + std::to_string(i + 2) + ".");
    }
    const StepGraphs& graphs = device_->graphs();
    if (!graphs.refusal().empty()) return internal_error(graphs.refusal());
    if (graphs.launched() == 0) return internal_error("No step was run as a recorded graph.");
    return std::to_string(graphs.launched()) + " steps as graphs, the same bits";
  }

 private:
  static constexpr int32_t kTokens = 64, kBlocks = kTokens / kKvBlockTokens;
  static constexpr double kTolerance = 0.06;

  // `count` tokens from `position` on, on both; the last one's logits.
  Status run(int32_t position, int32_t count) {
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions;
    for (int32_t i = position; i < position + count; ++i) {
      tokens.push_back(i * 37 % file_.config.vocab);
      positions.push_back(i);
    }
    const int32_t blocks[kBlocks] = {2, 0, 3, 1};
    const RowGroup group{0, count, position, blocks};
    const int32_t last = count - 1;
    ModelBatch batch;
    batch.tokens = tokens;
    batch.positions = positions;
    batch.groups = {&group, 1};
    batch.logits_rows = {&last, 1};
    batch.logits_stride = file_.config.vocab;
    for (const bool on_device : {false, true}) {
      std::vector<float>& logits = on_device ? device_logits_ : host_logits_;
      logits.assign(static_cast<size_t>(file_.config.vocab), NAN);
      batch.logits = logits.data();
      TRY(on_device ? device_->forward(batch, device_kv_) : host_->forward(batch, host_kv_->view()));
    }
    return {};
  }

  SteadyClock clock_;
  Ledger ledger_{kGiB};
  ThreadPool pool_{1};
  BaseModelFile file_;
  std::unique_ptr<WeightStore> weights_;
  std::unique_ptr<Model> host_;
  std::unique_ptr<KvCache> host_kv_;
  std::unique_ptr<CudaModel> device_;
  CudaKv device_kv_;
  std::vector<float> host_logits_, device_logits_;
};

}  // namespace

bool run_gpu_smoke(const GpuSmokeOptions& options, const std::function<void(const GpuSmokeLayer&)>& each) {
  bool all = true;
  const auto layer = [&](const char* name, const auto& run) {
    const auto begin = std::chrono::steady_clock::now();
    Found found = run();
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    const bool ok = found.ok();
    all = all && ok;
    each({name, std::move(found), ms});
    return ok;
  };
  if (!layer("device", [&] { return device_is_there(options.device); })) return false;
  layer("copy", copies);
  layer("kernel", kernel_runs);
  layer("product", product_is_right);
  layer("graph", graph_runs);
  Twins twins;
  layer("upload", [&]() -> Found {
    TRY(twins.open(options));
    return twins.uploaded();
  });
  if (!twins.is_open()) return false;
  layer("step", [&] { return twins.step(); });
  layer("recorded step", [&] { return twins.recorded_step(); });
  return all;
}

}  // namespace loralei
