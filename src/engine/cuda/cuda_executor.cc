// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cuda_executor.h"

#include <string>

#include "base/units.h"

namespace loralei {
namespace {

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(CudaModel& model, const CudaKv& kv) : model_(model), kv_(kv) {}
  Status execute(const ModelBatch& batch, const KvView&) override { return model_.forward(batch, kv_); }
  int32_t kv_blocks() const override { return kv_.blocks(); }
  int64_t adapter_bytes() const override { return model_.adapters().bytes(); }
  const ModelLimits& limits() const override { return model_.limits(); }

  Status accepts(const Adapter& adapter) const override {
    if (adapter.saved.any() || adapter.vocab > model_.config().vocab) {
      return unsupported(
          "it replaces whole tensors of the model (modules_to_save, trained tokens, a larger vocabulary), which no GPU "
          "kernel reads yet; run it on the CPU.");
    }
    int64_t bytes = 0;
    for (const LoraPair& pair : adapter.pairs) {
      if (pair.rank > model_.limits().rank_max) {
        return unsupported("it has rank " + std::to_string(pair.rank) + " and the model was made for ranks up to " +
                           std::to_string(model_.limits().rank_max) + "; start it with a higher largest rank.");
      }
      bytes += CudaAdapters::pair_bytes(pair);
    }
    if (bytes <= model_.adapters().bytes_max()) return {};
    return too_large("it needs " + format_bytes(bytes) + " of GPU memory and adapters have " +
                     format_bytes(model_.adapters().bytes_max()) + " together; give them more with --adapter-memory.");
  }

 private:
  CudaModel& model_;
  const CudaKv& kv_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(CudaModel& model, const CudaKv& kv) {
  return std::make_unique<CudaExecutor>(model, kv);
}

}  // namespace loralei
