// SPDX-License-Identifier: Apache-2.0
// The operations of ops/args.h on a GPU, without CUDA's headers. Unproven on a GPU so
// far: the tests run the same kernels on the emulated one (device/cuda/emulated) and
// compare them with the table `ref`.
//
// Thread: one thread a stream.
// Ownership: none. All pointers are device memory and stay valid until the stream got
// there. No allocation, no copy, no synchronisation: every call puts kernels on the
// stream and returns, so that a step can be captured in a CudaGraph. What differs from
// step to step lies in device arrays (StepRows, LoraStep) filled before the graph is
// launched; sizes given by value are those of the bucket the graph was captured for,
// and rows beyond the step's own are idle (token -1, table -1, segment of no rows).
// Numbers: the residual stream and every sum are f32; inputs of products are bf16 (f32
// where said). A row's result depends on that row alone: each sum runs in one order
// fixed by the shape.
// Failure: Status, when the driver refuses a launch; errors of a running kernel come with
// the stream's synchronise.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/result.h"
#include "device/cuda/cuda_stream.h"
#include "ops/row_choice.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace loralei::cuda {

inline constexpr int32_t kRowsMax = 65'535;  // of one call: a grid has no more blocks in y

// The rows of a step. tables[row] is where the row's block table begins in
// `blocks`: position p of its sequence lies in cache block blocks[tables[row] + p
// / kKvBlockTokens].
struct StepRows {
  int32_t rows = 0;
  const int32_t* positions = nullptr;  // [rows]
  const int32_t* tables = nullptr;     // [rows], -1: idle
  const int32_t* blocks = nullptr;
};

// Whether products and look-ups have kernels for weights in this format (dispatch.h).
constexpr bool reads_weights(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

// A weight matrix [rows, cols] in one piece: kPlain in any format, kTile16 in quantised
// ones (tensor/tile_layout.h; the bytes are those of the host, nothing is repacked).
struct DeviceWeight {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  LayoutId layout = LayoutId::kPlain;
  int32_t rows = 0;
  int32_t cols = 0;
};

// --- element-wise; y_dtype is f32, bf16 or f16

// As loralei::RmsNormArgs.
struct RmsNormArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;  // may be x where y_dtype is f32
  DType y_dtype = DType::kBF16;
  int64_t y_stride = 0;
  const float* weight = nullptr;
  int32_t rows = 0;
  int32_t vectors = 1;
  int32_t dim = 0;
  float eps = 1e-5f;
};
Status rms_norm(CudaStream& stream, const RmsNormArgs& args);

// As loralei::RopeArgs, in place; idle rows are turned by whatever their position says.
struct RopeArgs {
  float* x = nullptr;
  int64_t stride = 0;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;  // even
  const int32_t* positions = nullptr;
  const float* inv_freq = nullptr;
  float attention_scale = 1.0f;
};
Status rope(CudaStream& stream, const RopeArgs& args);

// y = silu(gate) * up.
struct SwigluArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t stride = 0;
  void* y = nullptr;
  DType y_dtype = DType::kBF16;
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
};
Status swiglu(CudaStream& stream, const SwigluArgs& args);

// y += x; with x_stride 0 the same x for every row (a bias).
struct AddArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
};
Status add(CudaStream& stream, const AddArgs& args);

// y[row] = W[tokens[row]]; a row whose token is -1 becomes zeros. Any weight format.
struct EmbedArgs {
  const TokenId* tokens = nullptr;
  int32_t rows = 0;
  DeviceWeight w;
  float* y = nullptr;
  int64_t y_stride = 0;
};
Status embed(CudaStream& stream, const EmbedArgs& args);

// y[to[i]] = x[from[i]]; -1: zeros. y_dtype f32, bf16 or f16: also the way to round an
// input of products.
struct GatherArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* from = nullptr;  // null: row i
  void* y = nullptr;
  DType y_dtype = DType::kF32;
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
  const int32_t* to = nullptr;  // each row once; null: row i
};
Status gather_rows(CudaStream& stream, const GatherArgs& args);

// y [w.rows, w.cols] = the weights decoded; y_dtype f32, bf16 or f16. For products
// with many rows.
struct DecodeArgs {
  DeviceWeight w;
  void* y = nullptr;
  DType y_dtype = DType::kBF16;
};
Status decode_weights(CudaStream& stream, const DecodeArgs& args);

// --- KV cache and attention

// A paged cache addressed as loralei::KvView (block, layer, k|v, head), but every head is
// [kKvBlockTokens, head_dim], K as well as V: neighbouring threads then read neighbouring
// numbers of one position, and products on matrix units find K as they want it. int8 and
// fp8 as on the host: the numbers, then [kKvBlockTokens] f32 scales. The base and every
// stride are multiples of 16 bytes (checked): kernels read 16 bytes at a time.
struct DeviceKv {
  std::byte* base = nullptr;
  int64_t block_stride_bytes = 0;
  int64_t layer_stride_bytes = 0;
  int64_t kv_stride_bytes = 0;
  int64_t head_stride_bytes = 0;
  DType dtype = DType::kBF16;  // f32, f16, bf16, int8 or fp8
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  friend bool operator==(const DeviceKv&, const DeviceKv&) = default;
};

// Writes K (after RoPE) and V of every row that is not idle.
struct KvStoreArgs {
  const float* k = nullptr;  // [rows, kv_heads * head_dim]
  const float* v = nullptr;
  int64_t stride = 0;
  DeviceKv kv;
  int32_t layer = 0;
  StepRows rows;
};
Status kv_store(CudaStream& stream, const KvStoreArgs& args);

// As loralei::AttentionArgs, for any rows. Positions are cut into splits of
// kAttentionSplit at absolute positions; each (row, KV head, split) is a block, its query
// heads share what it reads, and the splits' results are combined in order. So a row's
// result does not depend on the launch. Sums and weights are f32. Idle rows get zeros.
// heads is a multiple of kv.kv_heads; rows and heads are at most kRowsMax. Unsupported:
// heads so large that a block's shared memory does not hold their part (2048 numbers with
// four query heads to a KV head; any of up to 1024 is taken).
inline constexpr int32_t kAttentionSplit = 64;
struct AttentionArgs {
  const float* q = nullptr;  // [rows, heads * head_dim], after RoPE
  int64_t q_stride = 0;
  void* out = nullptr;  // [rows, heads * head_dim]
  DType out_dtype = DType::kBF16;
  int64_t out_stride = 0;
  DeviceKv kv;
  int32_t layer = 0;
  int32_t heads = 0;
  float scale = 0;
  int32_t window = 0;         // 0: none
  int32_t positions_max = 0;  // every position is below this: the splits launched
  float* scratch = nullptr;   // attention_scratch_floats() numbers
  StepRows rows;
};
Status attention(CudaStream& stream, const AttentionArgs& args);
int64_t attention_scratch_floats(int32_t rows, int32_t heads, int32_t head_dim, int32_t positions_max);

// The same for runs of rows of one sequence (prefill), on matrix units: a tile is up
// to kAttentionTileRows consecutive rows at consecutive positions; tiles of no rows
// are idle. q, the weights and a cache in f32 are rounded to bf16 (to f16 for a cache
// in f16); int8 and fp8 are exact in bf16, their scales multiply in f32. head_dim 64,
// 96 or 128: see has_tiled_attention. `rows` has the rows' positions and tables;
// rows in no tile are not written. q and its rows begin at multiples of 16 bytes; at
// most kRowsMax tiles.
inline constexpr int32_t kAttentionTileRows = 64;
struct AttentionTile {
  int32_t row_begin = 0;
  int32_t row_count = 0;
};
struct TiledAttentionArgs {
  AttentionArgs attention;               // scratch and positions_max are not used
  const AttentionTile* tiles = nullptr;  // [tile_count], on the device
  int32_t tile_count = 0;
};
bool has_tiled_attention(int32_t head_dim);
Status tiled_attention(CudaStream& stream, const TiledAttentionArgs& args);

// --- LoRA (mechanisms section 1)
//
//   v = A x for every (segment, row), then y += scale * scaling * B v

// A module's pair in device memory, laid out as loralei::LoraPair: plain factors (a
// [rank, in], or [vocab, rank] for an embedding; b_t [rank, out]), or int8 ones with
// their scales (ops/lora_factors.h; never an embedding's). Rows of both begin at
// multiples of 16 bytes where rank * size allows, and any length is taken.
struct DeviceLora {
  const void* a = nullptr;
  const void* b_t = nullptr;
  const float* a_scale = nullptr;  // [rank, groups of in], int8 alone
  const float* b_scale = nullptr;  // [groups of out, rank], int8 alone
  const float* b_bias = nullptr;
  const float* bias_delta = nullptr;
  float scaling = 0;
  int32_t rank = 0;  // 0: no product
  int32_t in = 0;
  int32_t out = 0;
  DType dtype = DType::kBF16;  // f32, f16, bf16 or int8
  int32_t present = 0;         // 0: this adapter does nothing here, all else is not read
};

// The segments of a step in device arrays, made by LoraPlan::fill from a
// step's LoraSegments.
struct DeviceLoraSegment {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t slot = 0;
  float scale = 0;
  int32_t entry_begin = 0;  // its rows' first number among all (segment, row) entries
};
// Up to kLoraRunRows consecutive rows that lie in the same segments: entries [begin,
// begin + count) of `order`.
struct DeviceLoraRun {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t begin = 0;
  int32_t count = 0;
};
// Up to kLoraRunRows rows of one segment.
struct DeviceLoraPart {
  int32_t segment = 0;
  int32_t first = 0;  // row of the segment
  int32_t row_count = 0;
};
inline constexpr int32_t kLoraRunRows = 8;

// Every count is that of the bucket: parts, runs and so on beyond the step's own
// have row_count 0.
struct LoraStep {
  const DeviceLoraSegment* segments = nullptr;
  const DeviceLoraPart* parts = nullptr;
  int32_t part_count = 0;
  const DeviceLoraRun* runs = nullptr;
  int32_t run_count = 0;
  const int32_t* order = nullptr;  // segments of the runs, each run's in the order of application
};

// Projections that share a layer input. sources [slots] are read when the kernels run:
// a copy may change them between two layers or two launches of a graph.
struct LoraTarget {
  float* y = nullptr;
  int64_t y_stride = 0;
  const DeviceLora* sources = nullptr;  // [slots]
  int32_t out = 0;
};
inline constexpr int32_t kLoraTargetsMax = 4;

struct LoraArgs {
  const void* x = nullptr;  // [rows, in]
  DType x_dtype = DType::kBF16;
  int64_t x_stride = 0;
  int32_t in = 0;
  const TokenId* tokens = nullptr;  // set: the low-rank part of an embedding (x is not read; a is [vocab, rank])
  LoraStep step;
  LoraTarget targets[kLoraTargetsMax];
  int32_t target_count = 0;
  float* v = nullptr;  // scratch [target_count][entries][rank_max]
  int32_t entries = 0;
  int32_t rank_max = 0;  // no pair has a higher rank
};
// Each segment costs its own rank; rows in no segment cost nothing.
Status lora_shrink(CudaStream& stream, const LoraArgs& args);
Status lora_expand(CudaStream& stream, const LoraArgs& args);
inline Status lora(CudaStream& stream, const LoraArgs& args) {
  TRY(lora_shrink(stream, args));
  return lora_expand(stream, args);
}

// The padded variant (one adapter a row, all of one rank): no plan is needed, and each
// row costs the common rank. The factors of every pair used are laid out for `rank` rows,
// those beyond its own all zeros. Rows with slot -1 cost nothing.
struct PaddedLoraArgs {
  const void* x = nullptr;
  DType x_dtype = DType::kBF16;
  int64_t x_stride = 0;
  int32_t in = 0;
  int32_t rows = 0;
  const int32_t* slots = nullptr;  // [rows]
  const float* scales = nullptr;   // [rows]
  LoraTarget targets[kLoraTargetsMax];
  int32_t target_count = 0;
  float* v = nullptr;  // scratch [target_count][rows][rank]
  int32_t rank = 0;
};
Status lora_padded_shrink(CudaStream& stream, const PaddedLoraArgs& args);
Status lora_padded_expand(CudaStream& stream, const PaddedLoraArgs& args);

// --- products with few rows (decode)
// Weights are read once for all of up to kGemvRows rows.

inline constexpr int32_t kGemvRows = 8;

// Inputs of integer products: each row's blocks of 32 numbers rounded to int8 as
// ops/args.h (TileMatmulArgs) says, to the bit. Made once for all projections that
// share a layer input.
struct RoundedRows {
  int8_t* q = nullptr;    // [rows, in], at a multiple of 16 bytes
  float* d = nullptr;     // [rows, in / 32]
  float* sums = nullptr;  // [rows, in / 32]: d * (sum of the block's q)
};
struct RoundRowsArgs {
  const float* x = nullptr;  // [rows, in], in a multiple of 32
  int64_t x_stride = 0;
  int32_t rows = 0;
  int32_t in = 0;
  RoundedRows to;
};
Status round_rows(CudaStream& stream, const RoundRowsArgs& args);

// Matrices that meet one input in one launch (q, k and v; gate and up): of one width and
// one format, each at a multiple of 16 bytes.
inline constexpr int32_t kProductTargets = 3;
struct ProductTarget {
  DeviceWeight w;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
};

// y = x W^T (+ bias) (+ y with `accumulate`) for quantised weights in tiles, in any
// format: integer products within blocks as ops/args.h defines them, the blocks' f32
// terms summed in another order than there, which the width alone fixes: a row's bits are
// the same for any number of rows and targets. 1 to kGemvRows rows.
struct TileGemvArgs {
  RoundedRows x;
  int32_t rows = 0;
  ProductTarget targets[kProductTargets];  // kTile16
  int32_t target_count = 0;
  bool accumulate = false;
};
Status tile_gemv(CudaStream& stream, const TileGemvArgs& args);

// The same for weights in f32, bf16 or f16 and inputs in f32 or bf16. 1 to kGemvRows
// rows. With `columns` the weights are some of a matrix's rows: output o goes to y's
// column columns[o].
struct PlainGemvArgs {
  const void* x = nullptr;
  DType x_dtype = DType::kBF16;
  int64_t x_stride = 0;
  int32_t rows = 0;
  DeviceWeight w;  // kPlain
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
  const int32_t* columns = nullptr;  // [w.rows], each once; null: o
};
Status plain_gemv(CudaStream& stream, const PlainGemvArgs& args);

// The same on matrix units, for bf16 inputs and weights for which has_thin_gemm()
// holds; they are read once. 1 to kThinRows rows; x and its rows begin at multiples
// of 16 bytes. Products are exact (f16 weights enter as two bf16 numbers each), sums
// f32 in an order that the width alone fixes: a row's bits are the same for any number
// of rows and targets.
inline constexpr int32_t kThinRows = 64;
struct ThinGemmArgs {
  const void* x = nullptr;  // bf16
  int64_t x_stride = 0;
  int32_t rows = 0;
  ProductTarget targets[kProductTargets];
  int32_t target_count = 0;
  bool accumulate = false;
};
// bf16 or f16 in plain layout, 32 numbers a row at least, every row at a
// multiple of 16 bytes.
bool has_thin_gemm(const DeviceWeight& w);
Status thin_gemm(CudaStream& stream, const ThinGemmArgs& args);

// --- sampling
// One token a row, as sampling/sampler.h chooses it from logits that were already
// adjusted (penalties, bias, masks): temperature, top-k, top-p, min-p, then the inverse
// of the cumulated distribution at uniform_at(seed, choice, position), best first where
// top-k or top-p cuts off, else by id. Greedy (temperature 0 or top_k 1) is exact: ties
// go to the lowest id. Weights are e^x in f32 as integers of 2^-31, whose sums do not
// depend on their order: a token less likely than that beside the best is never drawn,
// and a draw may differ from the host's where the two roundings put the target on
// either side of a token.

struct SampleArgs {
  const float* logits = nullptr;  // [rows, stride]
  int64_t stride = 0;
  int32_t rows = 0;
  const RowChoice* choices = nullptr;  // [rows]; a vocabulary is at most the stride, without one nothing is written
  TokenId* tokens = nullptr;           // [rows]: -1 where nothing is possible (every logit -inf or NaN)
};
Status sample(CudaStream& stream, const SampleArgs& args);

}  // namespace loralei::cuda
