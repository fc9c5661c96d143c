// SPDX-License-Identifier: Apache-2.0
// A packed file that is found to be damaged while the server runs: made again beside it,
// then streamed from.
#include <utility>

#include "engine/engine_host_parts.h"
#include "weights/pack.h"

namespace loralei {
namespace {

constexpr int64_t kMendAgainNs = 10'000'000'000;  // after one that failed

}  // namespace

// Between two steps, as Executor::ready() is asked: ok where weights can be read; else
// what requests end with meanwhile.
Status EngineHost::mend_packed(LogSink& log) {
  Parts& parts = *parts_;
  if (parts.weights->damage() == PackedDamage::kNone) return {};
  if (auto made = parts.mender.take()) {
    const Status mended = stream_from(*made, log);
    if (mended.ok()) log.log(LogLevel::kInfo, "Weights are streamed again, from '" + parts.packed_path + "'.");
    if (!mended.ok()) log.log(LogLevel::kError, mended.error().message);
    if (parts.weights->damage() == PackedDamage::kNone) return {};
    parts.mend_failure = mended.ok() ? std::string() : mended.error().message;
    parts.mend_again_ns = parts.clock.now_ns() + kMendAgainNs;
  }
  if (!parts.mender.running() && parts.clock.now_ns() >= parts.mend_again_ns) begin_mending(log);
  if (parts.mend_failure.empty()) {
    return Error{ErrorCode::kUnavailable,
                 "The file that weights are streamed from was damaged and is being made again; try again later."};
  }
  return Error{ErrorCode::kUnavailable,
               "The file that weights are streamed from was damaged and could not be made again, which is tried every "
               "ten seconds: " +
                   parts.mend_failure};
}

// In the form that the damaged one had, so that the plan stays.
void EngineHost::begin_mending(LogSink& log) {
  Parts& parts = *parts_;
  WeightOptions options = parts.weight_options;
  options.shrink = parts.weights->packed_shrunk() ? StreamShrink::kOn : StreamShrink::kOff;
  const bool stays = parts.weights->damage() == PackedDamage::kStays;
  parts.mender.begin([this, options, stays, &log](const std::stop_token& stop) -> Result<std::string> {
    if (!stays) {  // another process may have made it
      const auto found = find_packed(parts_->file, options, parts_->options.cache_dir, log);
      if (found) return found->path;
    }
    TRY_ASSIGN(const PackedFile packed, pack_beside_steps(options, stop, log));
    return packed.path;
  });
}

Status EngineHost::stream_from(const Result<std::string>& made, LogSink& log) {
  if (!made.ok()) return made.error();
  Parts& parts = *parts_;
  const std::lock_guard lock(parts.packed_mutex);
  parts.packed_path = *made;
  return parts.weights->reopen(parts.file, parts.weight_options, *made, log);
}

}  // namespace loralei
