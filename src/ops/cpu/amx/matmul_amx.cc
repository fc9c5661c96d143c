// SPDX-License-Identifier: Apache-2.0
// Products with bf16 and f16 weights on the matrix unit (AMX-BF16), for any
// number of rows.
//
// An f32 input is exactly the sum of three bf16 numbers: x1 = bf16(x), x2 = bf16(x - x1),
// x3 = x - x1 - x2. A bf16 weight is one piece, an f16 weight exactly the sum of two:
// its upper eight bits and the other three. The unit multiplies a piece of sixteen rows
// of weights with one of 32 inputs of up to sixteen rows of x: products of bf16 numbers
// are exact in f32, it adds those of the first and those of the second numbers of sixteen
// pairs in ascending order, then the two to the result (Intel's TDPBF16PS). Blocks of 32
// inputs follow in ascending order, in each the pieces of the weights from the largest
// on, with each the inputs' likewise; the smallest two, of f16 weights and inputs, do not
// meet (less than 2^-24 of the product). So the number for (row, output) is one chain,
// however many rows and outputs are multiplied together (batch invariance), as accurate
// as f32 FMA. What is below 2^-126 counts as zero there, pieces included; an infinite
// input, or an infinite f16 weight, makes NaNs.
#include "ops/cpu/amx/matmul_amx.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>

#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/tiles.h"

LORALEI_TARGET_BEGIN_AMX_BF16
namespace loralei {
namespace {
namespace matmul_amx {

// clang-format off
#include "ops/cpu/lanes/simd_avx512.inl.h"
#include "ops/cpu/amx/tile_config.inl.h"
#include "ops/cpu/amx/matmul_amx_pieces.inl.h"
#include "ops/cpu/amx/matmul_amx_unit.inl.h"
// clang-format on

// One or two tiles of outputs that are multiplied together: two only where
// both are whole.
struct OutputTiles {
  RowTile tile[2];
  int count = 0;
};

// A thread's share of the outputs.
template <class Weights>
class Share {
 public:
  Share(const MatmulArgs& args, const Inputs& inputs, int64_t first_row, std::byte* memory)
      : args_(args),
        inputs_(inputs),
        first_row_(first_row),
        weight_stride_(row_bytes(args.w.dtype, args.w.cols)),
        gathered_(memory),
        sums_(reinterpret_cast<float*>(memory + matrix_gathered_bytes(inputs.rows, Weights::kPieces))) {}
  ~Share() { _tile_release(); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // Tiles of outputs [begin, end).
  void run(int64_t begin, int64_t end) {
    if (inputs_.tiles <= kMatrixStreamTiles) return stream(begin, end);
    for (int64_t first = begin; first < end; first += kMatrixTilesTogether)
      block(first, std::min(first + kMatrixTilesTogether, end), end);
  }

 private:
  OutputTiles tiles_at(int64_t index, int64_t end) const {
    OutputTiles tiles;
    tiles.tile[tiles.count++] = row_tile(args_.w, index);
    if (index + 1 < end && tiles.tile[0].count == kRowTile) {
      const RowTile second = row_tile(args_.w, index + 1);
      if (second.count == kRowTile) tiles.tile[tiles.count++] = second;
    }
    return tiles;
  }

  void prepare(const OutputTiles& tiles) {
    if (tiles.tile[0].count == configured_) return;
    configured_ = tiles.tile[0].count;
    configure(configured_, inputs_.width);
  }

  float* sums_of(int64_t tile) const { return sums_ + tile * inputs_.tiles * kSums; }

  // Few rows: the weights meet them as they come from memory.
  void stream(int64_t begin, int64_t end) {
    const int64_t whole = args_.w.cols / kStepInputs;
    WeightsAhead none;
    for (int64_t index = begin; index < end;) {
      const OutputTiles tiles = tiles_at(index, end);
      prepare(tiles);
      Operands operands;
      for (int o = 0; o < tiles.count; ++o) operands.weights[o] = tiles.tile[o].data;
      operands.weight_rows = tiles.tile[0].count;
      operands.weight_stride = weight_stride_;
      operands.laid = gathered_;
      operands.steps = whole;
      operands.next = tiles.count * kRowTile * weight_stride_;
      if (whole > 0) multiply_all<true>(operands, tiles.count, 0, 0, none);
      if (whole < inputs_.steps) {
        for (int o = 0; o < tiles.count; ++o) operands.weights[o] = gather(tiles.tile[o], o, whole, 1);
        operands.steps = 1;
        multiply_all<false>(operands, tiles.count, 0, whole, none);
      }
      for (int o = 0; o < tiles.count; ++o) write(tiles.tile[o], o);
      index += tiles.count;
    }
  }

  // Many rows: some steps of the weights of several tiles are laid one behind the
  // other and stay in the second-level cache. Those of two tiles of tokens stay in the
  // first-level one while they meet all of them.
  void block(int64_t begin, int64_t end, int64_t share_end) {
    const int64_t token_pairs = (inputs_.tiles + 1) / 2;
    const int64_t lines = (2 * kRowTile + token_pairs - 1) / token_pairs;
    for (int64_t step = 0; step < inputs_.steps; step += kMatrixBlockSteps) {
      const int64_t count = std::min(kMatrixBlockSteps, inputs_.steps - step);
      for (int64_t index = begin; index < end; ++index) gather(row_tile(args_.w, index), index - begin, step, count);
      const bool last = step + count == inputs_.steps;
      WeightsAhead ahead(args_.w, last ? end : begin, last ? std::min(end + kMatrixTilesTogether, share_end) : end,
                         last ? 0 : step + count, lines);
      for (int64_t tokens = 0; tokens < inputs_.tiles; tokens += 2)
        multiply_gathered(begin, end, tokens, step, count, ahead);
    }
    for (int64_t index = begin; index < end; ++index) write(row_tile(args_.w, index), index - begin);
  }

  void multiply_gathered(int64_t begin, int64_t end, int64_t tokens, int64_t step, int64_t count, WeightsAhead& ahead) {
    for (int64_t index = begin; index < end;) {
      const OutputTiles tiles = tiles_at(index, end);
      prepare(tiles);
      Operands operands;
      for (int o = 0; o < tiles.count; ++o) operands.weights[o] = gathered_of(index - begin + o);
      operands.steps = count;
      multiply_tokens<false>(operands, tiles.count, index - begin, tokens, step, ahead);
      index += tiles.count;
    }
  }

  std::byte* gathered_of(int64_t tile) const { return gathered_ + tile * matrix_gather_bytes(Weights::kPieces); }

  // Steps of a tile's weights as GatheredWeights reads them, with zeros behind
  // the last input.
  const std::byte* gather(const RowTile& tile, int64_t slot, int64_t step, int64_t count) const {
    std::byte* const to = gathered_of(slot);
    const int64_t whole = std::min(step + count, int64_t{args_.w.cols} / kStepInputs);
    for (int64_t row = 0; row < tile.count; ++row) {
      const std::byte* from = tile.data + row * weight_stride_ + step * kStepBytes;
      std::byte* place = to + row * kStepBytes;
      for (int64_t at = step; at < whole; ++at, from += kStepBytes, place += Weights::kPieces * kPieceBytes)
        Weights::lay(kWholeStep, from, place);
      if (whole < step + count) Weights::lay((__mmask32{1} << args_.w.cols % kStepInputs) - 1, from, place);
    }
    return to;
  }

  template <bool kStream>
  void multiply_all(Operands& operands, int output_tiles, int64_t slot, int64_t step, WeightsAhead& ahead) {
    for (int64_t tokens = 0; tokens < inputs_.tiles; tokens += 2)
      multiply_tokens<kStream>(operands, output_tiles, slot, tokens, step, ahead);
  }

  // The tiles of outputs that are slots [slot, slot + output_tiles) of the sums, and the
  // two tiles of tokens from `tokens` on.
  template <bool kStream>
  void multiply_tokens(Operands& operands, int output_tiles, int64_t slot, int64_t tokens, int64_t step,
                       WeightsAhead& ahead) {
    operands.inputs = inputs_.at(tokens, step);
    operands.input_stride = inputs_.row_stride();
    operands.input_tile_bytes = inputs_.tile_bytes();
    operands.from_zero = step == 0;
    for (int o = 0; o < output_tiles; ++o) operands.sums[o] = sums_of(slot + o) + tokens * kSums;
    const bool two = tokens + 1 < inputs_.tiles;
    if (output_tiles == 2) {
      two ? multiply_shape<kStream, 2, 2>(operands, ahead) : multiply_shape<kStream, 2, 1>(operands, ahead);
    } else {
      two ? multiply_shape<kStream, 1, 2>(operands, ahead) : multiply_shape<kStream, 1, 1>(operands, ahead);
    }
  }

  template <bool kStream, int kOutputTiles, int kTokenTiles>
  static void multiply_shape(const Operands& operands, WeightsAhead& ahead) {
    if constexpr (kStream && Weights::kPieces == 1) {
      multiply<Weights, kOutputTiles, kTokenTiles>(operands, StreamedWeights<kOutputTiles>(operands));
    } else if constexpr (kStream) {
      multiply<Weights, kOutputTiles, kTokenTiles>(operands, LaidWeights<Weights, kOutputTiles>(operands));
    } else {
      multiply<Weights, kOutputTiles, kTokenTiles>(operands, GatheredWeights<Weights>(operands, ahead));
    }
  }

  void write(const RowTile& tile, int64_t index) const {
    const F bias = args_.bias != nullptr ? load_n(args_.bias + tile.output, tile.count) : zero();
    for (int64_t t = 0; t < inputs_.tiles; ++t) {
      const float* const sums = sums_of(index) + t * kSums;
      I results[kRowTile];
      for (int o = 0; o < kRowTile; ++o) results[o] = bits_of(load(sums + o * kTokenTile));
      transpose16(results);
      const int64_t first = t * kTokenTile;
      const int64_t rows = std::min<int64_t>(inputs_.rows - first, inputs_.width);
      for (int64_t row = 0; row < rows; ++row) {
        float* const y = args_.y + (first_row_ + first + row) * args_.y_stride + tile.output;
        F value = _mm512_castsi512_ps(results[row]);
        if (args_.bias != nullptr) value = add(value, bias);
        if (args_.accumulate) value = add(load_n(y, tile.count), value);
        store_n(y, value, tile.count);
      }
    }
  }

  const MatmulArgs& args_;
  const Inputs& inputs_;
  const int64_t first_row_;
  const int64_t weight_stride_;
  std::byte* const gathered_;
  float* const sums_;   // [slot][token tile][kSums]
  int configured_ = 0;  // outputs of a product
};

template <class Weights>
void matmul(OpContext& ctx, const MatmulArgs& args) {
  if (args.rows <= 0 || args.w.rows <= 0) return;
  ++ctx.op_count;
  const int64_t parts = (args.rows + kMatrixPartRows - 1) / kMatrixPartRows;
  const int64_t part_rows = ((args.rows + parts - 1) / parts + kTokenTile - 1) / kTokenTile * kTokenTile;
  const Scratch scratch(ctx, matrix_input_bytes(std::min<int64_t>(args.rows, part_rows), args.w.cols),
                        matrix_worker_bytes(std::min<int64_t>(args.rows, part_rows), Weights::kPieces));
  const int64_t tiles = tile_count(args.w);
  for (int64_t first = 0; first < args.rows; first += part_rows) {
    Inputs inputs{.data = scratch.shared<std::byte>()};
    inputs.rows = std::min<int64_t>(part_rows, args.rows - first);
    inputs.steps = (args.w.cols + kStepInputs - 1) / kStepInputs;
    inputs.tiles = (inputs.rows + kTokenTile - 1) / kTokenTile;
    inputs.width = static_cast<int>(std::min<int64_t>(inputs.rows, kTokenTile));
    pack<Weights>(ctx, args, args.x + first * args.x_stride, inputs);
    ctx.pool->parallel_for_runs((tiles + 1) / 2, 1, [&](int64_t begin, int64_t end, int worker) {
      Share<Weights> share(args, inputs, first, scratch.worker<std::byte>(worker));
      share.run(2 * begin, std::min(2 * end, tiles));
    });
  }
}

}  // namespace matmul_amx
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {
void matmul_halves_amx(OpContext& ctx, const MatmulArgs& args) {
  args.w.dtype == DType::kBF16 ? matmul_amx::matmul<matmul_amx::WeightsBF16>(ctx, args)
                               : matmul_amx::matmul<matmul_amx::WeightsF16>(ctx, args);
}
}  // namespace loralei

#endif
