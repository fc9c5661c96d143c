// SPDX-License-Identifier: Apache-2.0
#include "base/limits.h"
#include "ops/cuda/cuda_test_util.h"

namespace loralei::cuda {
namespace {

constexpr DType kCacheDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8};

// The same K and V in a host cache (written by the reference) and in one of the
// GPU (written by kv_store), both with NaN where nothing was written and scattered
// block tables.
struct Caches {
  static constexpr int32_t kLayers = 2, kLayer = 1;
  int32_t kv_heads, head_dim;
  DType dtype;
  std::vector<std::byte> host;
  KvView view;
  DeviceArray<std::byte> device;
  std::vector<int32_t> free_blocks;

  static int64_t head_bytes(DType dtype, int32_t dim) { return (kv_head_bytes(dtype, dim) + 15) / 16 * 16; }
  Caches(CudaStream& stream, Prng& prng, DType type, int32_t heads, int32_t dim, int32_t blocks)
      : kv_heads(heads),
        head_dim(dim),
        dtype(type),
        host(static_cast<size_t>(head_bytes(type, dim) * heads * 2 * kLayers * blocks), std::byte{0xFF}),
        device(stream, host) {
    const int64_t bytes = head_bytes(type, dim);
    view = {.base = host.data(),
            .block_stride_bytes = bytes * heads * 2 * kLayers,
            .layer_stride_bytes = bytes * heads * 2,
            .kv_stride_bytes = bytes * heads,
            .head_stride_bytes = bytes,
            .dtype = type,
            .kv_heads = heads,
            .head_dim = dim};
    for (int32_t block = 0; block < blocks; ++block) free_blocks.push_back(block);
    for (size_t i = free_blocks.size(); i > 1; --i) std::swap(free_blocks[i - 1], free_blocks[prng.below(i)]);
  }
  DeviceKv kv() {
    return {device.data(),
            view.block_stride_bytes,
            view.layer_stride_bytes,
            view.kv_stride_bytes,
            view.head_stride_bytes,
            dtype,
            kv_heads,
            head_dim};
  }
};

struct Sequence {
  int32_t length = 0;
  std::vector<int32_t> blocks;
  int32_t table = 0;  // where they begin among all
};

class CudaAttention : public CudaTest {
 protected:
  // Sequences of these lengths, stored by both sides; leaves all block tables in blocks_.
  std::vector<Sequence> store(Prng& prng, Caches& caches, const std::vector<int32_t>& lengths) {
    std::vector<Sequence> sequences;
    all_blocks_.clear();
    const int64_t width = int64_t{caches.kv_heads} * caches.head_dim;
    std::vector<float> k, v;
    std::vector<int32_t> positions, tables;
    std::vector<RowGroup> groups;
    for (int32_t length : lengths) {
      Sequence& sequence = sequences.emplace_back();
      sequence.length = length;
      sequence.table = static_cast<int32_t>(all_blocks_.size());
      for (int32_t p = 0; p < length; p += kKvBlockTokens) {
        sequence.blocks.push_back(caches.free_blocks.back());
        caches.free_blocks.pop_back();
      }
      all_blocks_.insert(all_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
      for (int32_t p = 0; p < length; ++p) {
        positions.push_back(p);
        tables.push_back(sequence.table);
      }
    }
    int32_t row = 0;
    for (const Sequence& sequence : sequences) {
      groups.push_back({row, sequence.length, 0, sequence.blocks.data()});
      row += sequence.length;
    }
    k = random_floats(prng, row * width, 2);
    v = random_floats(prng, row * width, 2);
    ref_op_table().kv_store(fresh_context(ref_op_table()).ctx,
                            {k.data(), v.data(), width, caches.view, Caches::kLayer, groups});
    positions.push_back(3);  // an idle row
    tables.push_back(-1);
    k.resize(k.size() + static_cast<size_t>(width), NAN);
    v.resize(k.size(), NAN);
    auto dk = device(k), dv = device(v);
    auto dp = device(positions), dt = device(tables), db = device(all_blocks_);
    const Status stored = kv_store(
        stream_,
        {dk.data(), dv.data(), width, caches.kv(), Caches::kLayer, {row + 1, dp.data(), dt.data(), db.data()}});
    EXPECT_TRUE(stored.ok());
    EXPECT_TRUE(stream_.synchronize().ok());
    return sequences;
  }

  struct Row {
    int32_t sequence, position;  // sequence -1: idle
  };

  // One launch of the general kernel.
  std::vector<float> run(Caches& caches, const std::vector<Sequence>& sequences, const std::vector<Row>& rows,
                         const std::vector<float>& q, int32_t heads, int32_t window, int32_t positions_max,
                         DType out = DType::kF32) {
    return run_any(caches, sequences, rows, {}, q, heads, window, positions_max, out);
  }
  std::vector<float> run_any(Caches& caches, const std::vector<Sequence>& sequences, const std::vector<Row>& rows,
                             const std::vector<AttentionTile>& tiles, const std::vector<float>& q, int32_t heads,
                             int32_t window, int32_t positions_max, DType out = DType::kF32) {
    std::vector<int32_t> positions, tables;
    for (const Row& row : rows) {
      positions.push_back(row.position);
      tables.push_back(row.sequence < 0 ? -1 : sequences[static_cast<size_t>(row.sequence)].table);
    }
    const auto count = static_cast<int32_t>(rows.size());
    auto dq = device(q);
    auto dp = device(positions), dt = device(tables), db = device(all_blocks_);
    auto y = room(out, static_cast<int64_t>(q.size()));
    auto scratch = room(DType::kF32, attention_scratch_floats(count, heads, caches.head_dim, positions_max));
    const int64_t stride = int64_t{heads} * caches.head_dim;
    const AttentionArgs args{.q = dq.data(),
                             .q_stride = stride,
                             .out = y.data(),
                             .out_dtype = out,
                             .out_stride = stride,
                             .kv = caches.kv(),
                             .layer = Caches::kLayer,
                             .heads = heads,
                             .scale = 1.0f / std::sqrt(static_cast<float>(caches.head_dim)),
                             .window = window,
                             .positions_max = positions_max,
                             .scratch = reinterpret_cast<float*>(scratch.data()),
                             .rows = {count, dp.data(), dt.data(), db.data()}};
    if (tiles.empty()) {
      const Status launched = attention(stream_, args);
      EXPECT_TRUE(launched.ok());
      return decoded(out, y.get());
    }
    auto device_tiles = device(tiles);
    const Status launched = tiled_attention(stream_, {args, device_tiles.data(), static_cast<int32_t>(tiles.size())});
    EXPECT_TRUE(launched.ok());
    return decoded(out, y.get());
  }

  std::vector<float> reference(const Caches& caches, const std::vector<Sequence>& sequences,
                               const std::vector<Row>& rows, const std::vector<float>& q, int32_t heads,
                               int32_t window) {
    std::vector<float> out(q.size());
    const int64_t stride = int64_t{heads} * caches.head_dim;
    std::vector<RowGroup> groups;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].sequence < 0) continue;
      groups.push_back({static_cast<int32_t>(i), 1, rows[i].position,
                        sequences[static_cast<size_t>(rows[i].sequence)].blocks.data()});
    }
    ref_op_table().attention(fresh_context(ref_op_table(), 4).ctx,
                             {.q = q.data(),
                              .q_stride = stride,
                              .out = out.data(),
                              .out_stride = stride,
                              .kv = caches.view,
                              .layer = Caches::kLayer,
                              .heads = heads,
                              .scale = 1.0f / std::sqrt(static_cast<float>(caches.head_dim)),
                              .window = window,
                              .groups = groups});
    return out;
  }

  std::vector<int32_t> all_blocks_;
};

TEST_F(CudaAttention, TheCacheHoldsTheReferencesBitsInItsOwnOrder) {
  Prng prng(911);
  for (DType dtype : kCacheDTypes) {
    Caches caches(stream_, prng, dtype, 3, 40, 12);
    const std::vector<Sequence> sequences = store(prng, caches, {37, 1, 16});
    const std::vector<std::byte> got = caches.device.get();
    std::vector<std::byte> expected(got.size(), std::byte{0xFF});
    const auto size = static_cast<size_t>(row_bytes(dtype, 1));
    for (const Sequence& sequence : sequences) {
      for (int32_t p = 0; p < sequence.length; ++p) {
        for (int32_t which = 0; which < 2; ++which) {
          for (int32_t head = 0; head < 3; ++head) {
            const std::byte* from = caches.view.head(sequence.blocks[static_cast<size_t>(p / 16)], 1, which, head);
            std::byte* to = expected.data() + (from - caches.host.data());
            const auto slot = static_cast<size_t>(p % 16);
            for (size_t d = 0; d < 40; ++d)
              std::memcpy(to + (slot * 40 + d) * size, from + (which == 0 ? d * 16 + slot : slot * 40 + d) * size,
                          size);
            if (has_vector_scale(dtype)) std::memcpy(to + 640 + slot * 4, from + 640 + slot * 4, 4);
          }
        }
      }
    }
    EXPECT_EQ(got, expected) << dtype_info(dtype).name;
  }
}

// Vectors whose largest number is 448 have scale one: what is stored is what the host's
// codec, proved for every code and tie, makes of their numbers: of the middle of two
// neighbours, and of what lies beside it.
TEST_F(CudaAttention, Fp8IsRoundedAsOnTheHost) {
  Prng prng(917);
  std::vector<float> numbers;
  for (uint8_t low = 0; low < 0x7E; ++low) {
    const float a = fp8_to_f32(low), middle = (a + fp8_to_f32(static_cast<uint8_t>(low + 1))) / 2;
    for (const float x : {a, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      numbers.push_back(x);
      numbers.push_back(-x);
    }
  }
  while (numbers.size() % 63 != 0) numbers.push_back(std::ldexp(static_cast<float>(prng.uniform()), -9));
  const auto rows = static_cast<int32_t>(numbers.size() / 63);
  std::vector<float> k;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i % 63 == 0) k.push_back(448.0f);
    k.push_back(numbers[i]);
  }
  Caches caches(stream_, prng, DType::kF8, 1, 64, 8);
  std::vector<int32_t> positions, tables(static_cast<size_t>(rows)), blocks;
  for (int32_t row = 0; row < rows; ++row) positions.push_back(row);
  for (int32_t block = 0; block < 8; ++block) blocks.push_back(block);
  ASSERT_LE(rows, 8 * kKvBlockTokens);
  auto dk = device(k);
  auto dp = device(positions), dt = device(tables), db = device(blocks);
  LAUNCH_OK(kv_store(stream_,
                     {dk.data(), dk.data(), 64, caches.kv(), Caches::kLayer, {rows, dp.data(), dt.data(), db.data()}}));
  const std::vector<std::byte> got = caches.device.get();
  for (int32_t row = 0; row < rows; ++row) {
    const int64_t head = caches.view.head(row / 16, Caches::kLayer, 1, 0) - caches.host.data();
    float scale;
    std::memcpy(&scale, &got[static_cast<size_t>(head + 16 * 64 + row % 16 * 4)], 4);
    ASSERT_EQ(scale, 1.0f);
    for (int32_t d = 0; d < 64; ++d) {
      const float x = k[static_cast<size_t>(row * 64 + d)];
      ASSERT_EQ(static_cast<uint8_t>(got[static_cast<size_t>(head + row % 16 * 64 + d)]), f32_to_fp8(x)) << x;
    }
  }
}

// One position of weight one: attention's result is the value as it is. All 256 codes,
// those of NaN as well.
TEST_F(CudaAttention, EveryCodeOfFp8IsRead) {
  Prng prng(918);
  Caches caches(stream_, prng, DType::kF8, 1, 256, 1);
  std::vector<std::byte> bytes(caches.host.size());  // K and its scale: zeros
  const int64_t values = caches.view.head(0, Caches::kLayer, 1, 0) - caches.host.data();
  for (int64_t d = 0; d < 256; ++d) bytes[static_cast<size_t>(values + d)] = static_cast<std::byte>(d);
  const float scale = 1;
  std::memcpy(&bytes[static_cast<size_t>(values + 16 * 256)], &scale, 4);
  caches.device.set(bytes);
  all_blocks_ = {0};
  const std::vector<float> out = run(caches, {{1, {0}, 0}}, {{0, 0}}, std::vector<float>(256), 1, 0, kAttentionSplit);
  for (size_t d = 0; d < 256; ++d) {
    const float expected = fp8_to_f32(static_cast<uint8_t>(d));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(out[d])) << d;
    } else {
      EXPECT_EQ(out[d], expected) << d;
    }
  }
}

// Scores are off by (dim + 20) eps of their terms (a few units here), weights by the fast
// exponential, sums by their length: far below 2e-5 of values up to 2.
constexpr double kGeneralBound = 2e-5;

TEST_F(CudaAttention, TheGeneralKernelAgreesForAllHeadsFormatsAndWindows) {
  Prng prng(912);
  struct Case {
    int32_t kv_heads, heads, dim;
  };
  for (const Case& c : {Case{1, 1, 64}, Case{2, 4, 128}, Case{1, 3, 20}, Case{2, 14, 64}, Case{1, 9, 40},
                        Case{1, 2, 256}, Case{1, 8, 256}, Case{1, 1, 7}}) {
    for (DType dtype : kCacheDTypes) {
      Caches caches(stream_, prng, dtype, c.kv_heads, c.dim, 48);
      const std::vector<Sequence> sequences = store(prng, caches, {300, 17, 256});
      const std::vector<Row> rows = {{0, 299}, {1, 16}, {0, 0}, {-1, 5}, {2, 255}, {0, 256}, {0, 255}};
      const std::vector<float> q = random_floats(prng, static_cast<int64_t>(rows.size()) * c.heads * c.dim, 2);
      for (int32_t window : {0, 1, 33, 280}) {
        const std::vector<float> expected = reference(caches, sequences, rows, q, c.heads, window);
        const std::vector<float> got = run(caches, sequences, rows, q, c.heads, window, 512);
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(expected[i]), kGeneralBound)
              << dtype_info(dtype).name << " dim " << c.dim << " window " << window << " at " << i;
      }
    }
  }
}

TEST_F(CudaAttention, ARowAloneIsTheRowInABatch) {
  Prng prng(913);
  Caches caches(stream_, prng, DType::kBF16, 2, 64, 64);
  const std::vector<Sequence> sequences = store(prng, caches, {600, 40, 200});
  const std::vector<Row> rows = {{0, 599}, {1, 39}, {2, 199}, {0, 511}, {-1, 0}, {0, 512}};
  const std::vector<float> q = random_floats(prng, static_cast<int64_t>(rows.size()) * 8 * 64);
  for (int32_t window : {0, 100}) {
    const std::vector<float> together = run(caches, sequences, rows, q, 8, window, 1024);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto begin = static_cast<std::ptrdiff_t>(i * 8 * 64);
      const std::vector<float> mine(q.begin() + begin, q.begin() + begin + 512);
      const std::vector<float> alone =
          run(caches, sequences, {rows[i]}, mine, 8, window, (rows[i].position / 256 + 1) * 256);
      ASSERT_TRUE(same_bits(alone, std::vector<float>(together.begin() + begin, together.begin() + begin + 512))) << i;
    }
  }
}

// The tiled kernel rounds q and the weights to bf16 or f16: with u the format's rounding,
// a score s is off by at most u * sum|q k| * scale (d below), which changes weights by
// e^(+-2d); the weights' own rounding adds u. Half of the worst case is far from what
// random signs give.
TEST_F(CudaAttention, TilesAgreeWithinTheFormatsRounding) {
  Prng prng(914);
  struct Case {
    int32_t kv_heads, heads, dim;
  };
  for (const Case& c : {Case{1, 2, 64}, Case{1, 1, 128}, Case{2, 2, 96}}) {
    for (DType dtype : kCacheDTypes) {
      Caches caches(stream_, prng, dtype, c.kv_heads, c.dim, 32);
      const std::vector<Sequence> sequences = store(prng, caches, {150, 70});
      std::vector<Row> rows;
      for (int32_t p = 60; p < 150; ++p) rows.push_back({0, p});
      for (int32_t p = 0; p < 70; ++p) rows.push_back({1, p});
      const std::vector<AttentionTile> tiles = {{0, 64}, {64, 26}, {0, 0}, {90, 64}, {154, 6}};
      const std::vector<float> q = random_floats(prng, static_cast<int64_t>(rows.size()) * c.heads * c.dim, 2);
      for (int32_t window : {0, 50}) {
        const std::vector<float> expected = reference(caches, sequences, rows, q, c.heads, window);
        const std::vector<float> got = run_any(caches, sequences, rows, tiles, q, c.heads, window, 256);
        const double u = dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
        double worst = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_FALSE(std::isnan(got[i])) << i;
          worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
        }
        ASSERT_LT(worst, 4 * 2 * u) << dtype_info(dtype).name << " dim " << c.dim << " window " << window;
      }
    }
  }
}

TEST_F(CudaAttention, TilesCutAnywhereGiveTheSameBits) {
  Prng prng(915);
  for (DType dtype : {DType::kBF16, DType::kI8, DType::kF8}) {
    Caches caches(stream_, prng, dtype, 1, 64, 32);
    const std::vector<Sequence> sequences = store(prng, caches, {200});
    std::vector<Row> rows;
    for (int32_t p = 0; p < 200; ++p) rows.push_back({0, p});
    const std::vector<float> q = random_floats(prng, 200 * 64);
    for (int32_t window : {0, 70}) {
      const std::vector<float> whole =
          run_any(caches, sequences, rows, {{0, 64}, {64, 64}, {128, 64}, {192, 8}}, q, 1, window, 256);
      const std::vector<float> chunks = run_any(
          caches, sequences, rows, {{0, 1}, {1, 30}, {31, 40}, {71, 64}, {135, 17}, {152, 48}}, q, 1, window, 256);
      ASSERT_TRUE(same_bits(whole, chunks)) << window;
    }
  }
}

TEST_F(CudaAttention, ResultsMayBeBf16AndUnknownHeadsAreRefused) {
  Prng prng(916);
  Caches caches(stream_, prng, DType::kF16, 1, 64, 8);
  const std::vector<Sequence> sequences = store(prng, caches, {20});
  const std::vector<float> q = random_floats(prng, 64);
  const std::vector<float> exact = run(caches, sequences, {{0, 19}}, q, 1, 0, 256);
  EXPECT_EQ(run(caches, sequences, {{0, 19}}, q, 1, 0, 256, DType::kBF16), rounded(DType::kBF16, exact));
  EXPECT_FALSE(has_tiled_attention(80));
  DeviceKv kv = caches.kv();
  kv.head_dim = 80;
  EXPECT_FALSE(tiled_attention(stream_, {.attention = {.kv = kv, .heads = 1}}).ok());
  // More shared memory than a block may have: told before the launch, and on
  // every GPU alike.
  kv.head_dim = 2048;
  const Status refused = attention(stream_, {.kv = kv, .heads = 8, .positions_max = 64});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("shared memory"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace loralei::cuda
