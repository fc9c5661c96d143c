// SPDX-License-Identifier: Apache-2.0
#include "sim/sized_adapters.h"

#include <memory>
#include <utility>

#include "base/check.h"

namespace loralei::sim {

void SizedAdapters::add(const std::string& path, SizedAdapter adapter) {
  CHECK(adapter.bytes > 0 && adapter.rank > 0);
  const uint64_t content = adapters_.size() + 1;
  CHECK(adapters_.emplace(path, Placed{std::move(adapter), content}).second);
}

AdapterSource SizedAdapters::source() {
  const auto stamp = [this](const std::string& path) -> Result<FileStamp> {
    const auto found = adapters_.find(path);
    if (found == adapters_.end()) return not_found(path + " does not exist");
    return FileStamp{found->second.content, found->second.adapter.bytes, 1};
  };
  const auto load = [this](const std::string& path, const AdapterLoadOptions& options,
                           AdapterVersionId version) -> Result<AdapterLoad> {
    const auto found = adapters_.find(path);
    if (found == adapters_.end()) return not_found(path + " does not exist");
    const auto& [sized, content] = found->second;
    if (sized.broken) return *sized.broken;
    if (sized.bytes > options.bytes_max) return AdapterLoad{.bytes_needed = sized.bytes, .rank_max = sized.rank};
    auto adapter = std::make_shared<Adapter>();
    adapter->version = version;
    for (size_t i = 0; i < 8; ++i) adapter->digest[i] = static_cast<uint8_t>(content >> (8 * (7 - i)));
    adapter->bytes = sized.bytes;
    adapter->rank_max = sized.rank;
    adapter->pairs.resize(kLayerModules + 2);
    return AdapterLoad{.adapter = std::move(adapter)};
  };
  return {stamp, load};
}

bool SimulatedLoads::start(LoadJob&& job) {
  int64_t delay_ns = 0;
  bool fails = false;
  if (job.read) {
    delay_ns = simulated_ns(faults_.load_slowness() * disk_.predict_s(adapters_.find(job.path).bytes));
    fails = faults_.load_fails();
  }
  kernel_.after(delay_ns, EventOrder::kEnded, [this, fails, job = std::move(job)] {
    LoadDone done = run_load_job(source_, job);
    if (fails) done.load = io_error("the disk did not read " + job.path);
    done_(std::move(done));
  });
  return true;
}

}  // namespace loralei::sim
