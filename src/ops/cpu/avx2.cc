// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_table.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/host/isa.h"
#include "ops/cpu/attention_plan.h"
#include "ops/cpu/lora_plan.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/tiles.h"
#include "tensor/codec.h"

LORALEI_TARGET_BEGIN_AVX2
namespace loralei {
namespace {
namespace avx2 {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/simd_avx2.inl.h"
#include "ops/cpu/math.inl.h"
#include "ops/cpu/decode.inl.h"
#include "ops/cpu/matmul.inl.h"
#include "ops/cpu/elementwise.inl.h"
#include "ops/cpu/lora.inl.h"
#include "ops/cpu/attention_tile.inl.h"
#include "ops/cpu/attention.inl.h"
// clang-format on

}  // namespace avx2
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {

const OpTable* avx2_op_table() {
  static constexpr OpTable table{
      .name = "avx2",
      .matmul = avx2::matmul,
      .lora = avx2::lora,
      .lora_embed = avx2::lora_embed,
      .kv_store = avx2::kv_store,
      .attention = avx2::attention,
      .rms_norm = avx2::rms_norm,
      .rope = avx2::rope,
      .swiglu = avx2::swiglu,
      .embed = avx2::embed,
      .add = avx2::add_rows,
      .scratch_bytes = cpu_scratch_bytes,
  };
  return host_isa().avx2 ? &table : nullptr;
}

}  // namespace loralei

#else

namespace loralei {
const OpTable* avx2_op_table() { return nullptr; }
}  // namespace loralei

#endif
