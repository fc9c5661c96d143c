// SPDX-License-Identifier: Apache-2.0
#include "serve/memory_shown.h"

#include "wire/json_out.h"

namespace loralei {

std::string memory_body(const EngineStats& stats) {
  JsonOut out;
  const auto put = [&out](const MemoryShares& shares) {
    out.key("budget_bytes").number(shares.memory_budget_bytes);
    out.key("weights_bytes").number(shares.weights_bytes).key("kv_bytes").number(shares.kv_bytes);
    out.key("adapters_bytes").number(shares.adapter_bytes).key("adapters_bytes_max").number(shares.adapter_bytes_max);
    out.key("scratch_bytes").number(shares.scratch_bytes).key("requests_bytes").number(shares.request_bytes);
    out.key("other_bytes").number(shares.other_bytes);
  };
  out.begin_object();
  put(stats);
  out.key("kv_floor_bytes").number(stats.kv_floor_bytes);
  out.key("adapters_floor_bytes").number(stats.adapter_floor_bytes);
  out.key("given").begin_object();
  out.key("kv_to_adapters_bytes").number(stats.given.kv_to_adapters);
  out.key("adapters_to_kv_bytes").number(stats.given.adapters_to_kv);
  out.key("kv_to_others_bytes").number(stats.given.kv_to_others);
  out.key("adapters_to_others_bytes").number(stats.given.adapters_to_others).end_object();
  out.key("streamed_bytes_per_pass").number(stats.streamed_bytes);
  if (!stats.device.empty()) {
    out.key("device").begin_object().key("name").string(stats.device);
    put(stats.device_memory);
    out.key("context_bytes").number(stats.device_before_bytes).key("driver_bytes").number(stats.device_driver_bytes);
    out.end_object();
  }
  out.end_object();
  return out.take();
}

}  // namespace loralei
