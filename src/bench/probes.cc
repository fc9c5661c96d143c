// SPDX-License-Identifier: Apache-2.0
#include "bench/probes.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bench/generated_file.h"
#include "device/host/arena.h"
#include "sys/direct_read.h"
#include "weights/disk_probe.h"

namespace loralei {
namespace {

constexpr double kStreamProbeS = 0.7;

}  // namespace

Result<double> probe_disk_gb_s(const std::string& path, int64_t block_bytes, int depth, double seconds) {
  TRY_ASSIGN(const DirectFile file, DirectFile::open(path));
  const int64_t blocks = file.size_bytes() / block_bytes;
  if (blocks < 1)
    return invalid_argument("'" + path + "' is smaller than one block of " + std::to_string(block_bytes) + " bytes.");
  TRY_ASSIGN(const HostBuffer buffer, HostBuffer::allocate(block_bytes * depth));
  const SteadyClock clock;
  const int64_t start = clock.now_ns();
  const int64_t deadline = start + static_cast<int64_t>(seconds * 1e9);
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done_bytes{0};
  std::mutex mutex;
  Status first_error;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < depth; ++reader) {
    readers.emplace_back([&, reader] {
      const std::span<std::byte> place =
          buffer.bytes().subspan(static_cast<size_t>(reader * block_bytes), static_cast<size_t>(block_bytes));
      while (clock.now_ns() < deadline) {
        Status status = file.read(next.fetch_add(1) % blocks * block_bytes, place);
        if (!status.ok()) {
          const std::lock_guard lock(mutex);
          first_error = std::move(status);
          return;
        }
        done_bytes.fetch_add(block_bytes);
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  TRY(first_error);
  return static_cast<double>(done_bytes.load()) / static_cast<double>(clock.now_ns() - start);
}

Result<std::string> disk_probe_file(const std::string& cache_dir) {
  return make_once(cache_dir + "/disk-probe.bin", [](const std::string& unfinished) -> Status {
    constexpr int kChunks = 256;
    Writer out(unfinished);
    WeightSource source(1);  // numbers that no disk can compress away
    std::vector<std::byte> chunk(size_t{4} << 20);
    for (int i = 0; i < kChunks && out.ok(); ++i) {
      source.fill(DType::kQ8_0, chunk.data(), chunk.size());
      out.bytes(chunk.data(), chunk.size());
    }
    if (!out.close()) return io_error("Cannot write '" + unfinished + "'; choose another folder with --cache-dir.");
    return {};
  });
}

Result<double> probe_round_gb_s(const std::string& path, int round, ProbedBlocks blocks) {
  return probe_stream_gb_s(path, kStreamProbeS, round * 7 % 16 / 16.0, blocks);
}

}  // namespace loralei
