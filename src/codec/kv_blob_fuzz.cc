// SPDX-License-Identifier: Apache-2.0
// Any bytes as a blob: refused, or integers that every path reads alike and that encode
// to a blob of their own. The first byte says of which cache, how many layers, with or
// without an anchor, and whether the header is mended first, so that what lies behind it
// is reached.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/fast_hash.h"
#include "codec/codec_test_util.h"
#include "codec/kv_paper.h"

namespace loralei {
namespace {

KvGrid fuzzed_grid(DType dtype) {
  const KvGridShape shape{.layers = 2, .kv_heads = 1, .head_dim = 18, .dtype = dtype};
  return grid_of(shape, std::vector<float>(72, 1.0f), 0.5f);
}

// Of the anchor: numbers that repeat.
KvNumbers fuzzed_anchor(const KvGrid& grid) {
  KvNumbers anchor(grid);
  anchor.set_layers(grid.shape().layers);
  for (int32_t layer = 0; layer < anchor.layers(); ++layer) {
    int16_t value = 0;
    for (int16_t& integer : anchor.layer(layer)) integer = static_cast<int16_t>(value++ % 9 - 4);
  }
  return anchor;
}

void mend(const KvGrid& grid, const KvNumbers& anchor, std::vector<std::byte>& blob) {
  if (blob.size() < 28 + 8 + 8) return;
  const auto put = [&](size_t at, auto value) { std::memcpy(blob.data() + at, &value, sizeof value); };
  put(0, 'L');
  put(1, 'K');
  put(2, uint8_t{1});
  put(4, static_cast<uint32_t>(blob.size()));
  put(16, grid.digest());
  put(24, uint16_t{2});
  if (blob[3] == std::byte{1}) {
    put(28, kv_numbers_hash(anchor));
    for (int32_t layer = 0; layer < 2; ++layer)
      put(36 + 4 * static_cast<size_t>(layer), static_cast<uint32_t>(kv_layer_hash(anchor, layer)));
  }
  uint64_t start;
  std::memcpy(&start, blob.data(), sizeof start);
  put(8, fast_hash(blob.data() + 16, blob.size() - 16, start));
}

void decode(const KvGrid& grid, const KvNumbers* anchor, int32_t layers, std::span<const std::byte> blob) {
  KvNumbers expected(grid), got(grid);
  const bool ok = kv_decode(grid, blob, anchor, layers, expected, kv_codec_paths().front()).ok();
  for (const KvCodecPath& path : kv_codec_paths()) {
    CHECK(kv_decode(grid, blob, anchor, layers, got, path).ok() == ok);
    CHECK(!ok || same_numbers(got, expected));
  }
  if (!ok || layers < grid.shape().layers) return;
  CHECK(kv_blob_info(blob).ok());
  const std::vector<std::byte> own = encoded(grid, expected, anchor);
  CHECK(kv_decode(grid, own, anchor, got).ok() && same_numbers(got, expected));
}

}  // namespace
}  // namespace loralei

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  if (size == 0) return 0;
  const DType dtype = kCacheTypes[(data[0] & 7) % 5];
  const KvGrid grid = fuzzed_grid(dtype);
  const KvNumbers anchor = fuzzed_anchor(grid);
  const auto* const bytes = reinterpret_cast<const std::byte*>(data) + 1;
  std::vector<std::byte> blob(bytes, bytes + size - 1);
  if ((data[0] & 8) != 0) mend(grid, anchor, blob);
  const auto held = exact_copy(blob);
  const std::span<const std::byte> exact(held.get(), blob.size());
  const int32_t layers = 2 - (data[0] >> 4 & 3) % 3;
  decode(grid, (data[0] & 64) != 0 ? &anchor : nullptr, layers, exact);
  if (!has_vector_scale(dtype)) {
    const TestCache raw(grid.shape(), 2, 0);
    (void)kv_decode_paper(grid, exact, {raw.view(), 0}, {raw.view(), 1});
  }
  return 0;
}
