// SPDX-License-Identifier: Apache-2.0
// shrink_bench: GB/s of decoded numbers on one core, for each instruction set
// of this machine.
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "tensor/codec.h"
#include "tensor/shrink.h"

namespace loralei {
namespace {

void measure(DType dtype) {
  constexpr int64_t kTile = 16 * 2048, kTiles = 256;
  Prng prng(1);
  std::vector<uint16_t> numbers(kTile * kTiles);
  for (uint16_t& bits : numbers) {
    double sum = -6;  // of twelve: nearly normal
    for (int i = 0; i < 12; ++i) sum += prng.uniform();
    bits =
        dtype == DType::kF16 ? f32_to_f16(static_cast<float>(sum * 0.02)) : f32_to_bf16(static_cast<float>(sum * 0.02));
  }
  const auto* const source = reinterpret_cast<const std::byte*>(numbers.data());
  std::vector<SymbolCounts> counts(kTiles);
  for (int64_t i = 0; i < kTiles; ++i)
    count_symbols(dtype, source + 2 * kTile * i, kTile, counts[static_cast<size_t>(i)]);
  const ShrinkFit fit = fit_shrink(counts);
  const int64_t bytes = shrunk_bytes(dtype, kTile, fit.escapes_max);
  std::vector<std::byte> stored(static_cast<size_t>(bytes * kTiles)), out(2 * kTile * kTiles);
  const auto tile = [&](int64_t i) {
    return std::span(stored).subspan(static_cast<size_t>(i * bytes), static_cast<size_t>(bytes));
  };
  const SteadyClock clock;
  double begin_s = clock.now_s();
  for (int64_t i = 0; i < kTiles; ++i) {
    if (!shrink(dtype, fit.code, source + 2 * kTile * i, kTile, tile(i))) return;
  }
  const double encode_s = clock.now_s() - begin_s;
  std::printf("%s: %.3f times smaller, encoded at %.2f GB/s\n", dtype_info(dtype).name,
              static_cast<double>(2 * kTile) / static_cast<double>(bytes),
              static_cast<double>(out.size()) / encode_s * 1e-9);
  for (const UnshrinkPath& path : unshrink_paths()) {
    double best_s = 1e9;
    for (int round = 0; round < 12; ++round) {
      begin_s = clock.now_s();
      for (int64_t i = 0; i < kTiles; ++i) {
        if (!path.unshrink(dtype, fit.code, tile(i), kTile, out.data() + 2 * kTile * i)) return;
      }
      best_s = std::min(best_s, clock.now_s() - begin_s);
    }
    std::printf("  %-10s %6.2f GB/s\n", path.name, static_cast<double>(out.size()) / best_s * 1e-9);
  }
}

}  // namespace
}  // namespace loralei

int main() {
  loralei::measure(loralei::DType::kBF16);
  loralei::measure(loralei::DType::kF16);
}
