// SPDX-License-Identifier: Apache-2.0
#include "weights/shrink_choice.h"

#include <memory>

#include "base/clock.h"
#include "device/host/thread_pool.h"
#include "weights/disk_probe.h"
#include "weights/panel_decoder.h"
#include "weights/streamer.h"

namespace loralei {
namespace {

constexpr double kDecodeProbeS = 0.03;
constexpr double kDiskProbeS = 0.06;

Result<double> decode_gb_s(const PackedMatrix& matrix, std::span<const std::byte> tiles, int threads) {
  const int64_t count = std::ssize(tiles) / matrix.tile_bytes();
  const int64_t bytes = count * matrix.held_tile_bytes();
  ThreadPool pool(threads);
  TRY_ASSIGN(const std::unique_ptr<PanelDecoder> decoder, PanelDecoder::create(bytes, 1, &pool));
  const SteadyClock clock;
  double begin_s = 0, decoded = 0;
  for (int round = 0;; ++round) {  // the first one touches the memory and does not count
    if (round == 1) begin_s = clock.now_s();
    decoder->begin_round();
    decoder->add(matrix, 0, count, tiles.data());
    TRY(decoder->decode());
    if (round == 0) continue;
    decoded += static_cast<double>(bytes);
    const double seconds = clock.now_s() - begin_s;
    if (seconds > kDecodeProbeS) return decoded / seconds * 1e-9;
  }
}

}  // namespace

Result<StreamShrink> parse_stream_shrink(const std::string& name) {
  if (name == "auto") return StreamShrink::kAuto;
  if (name == "on") return StreamShrink::kOn;
  if (name == "off") return StreamShrink::kOff;
  return invalid_argument("--stream-shrink is auto, on or off, not '" + name + "'.");
}

Result<ShrinkRates> measure_shrink(const PackedMatrix& matrix, std::span<const std::byte> tiles,
                                   const std::string& path, int threads) {
  ShrinkRates rates;
  TRY_ASSIGN(rates.decode_gb_s, decode_gb_s(matrix, tiles, threads));
  TRY_ASSIGN(rates.disk_gb_s, probe_stream_gb_s(path, kDiskProbeS));
  return rates;
}

int64_t measure_shrink_memory(int64_t held_bytes) {
  return held_bytes + BlockReaderOptions().depth * StreamerOptions().block_bytes;
}

}  // namespace loralei
