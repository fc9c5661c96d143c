// SPDX-License-Identifier: Apache-2.0
#include "bench/server_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace loralei {
namespace {

// A counter of any size as a whole number.
int64_t whole(double value) {
  constexpr double kMost = 9e18;
  return value > 0 && value < kMost ? static_cast<int64_t>(value) : 0;
}

std::string label_of(const char* name, std::string_view value) {
  return std::string(name) + "=\"" + std::string(value) + "\"";
}

}  // namespace

MetricsPage MetricsPage::parse(std::string_view text) {
  MetricsPage page;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t space = line.rfind(' ');
    if (line.empty() || line.front() == '#' || space == std::string_view::npos) continue;
    const std::string_view number = line.substr(space + 1), name = line.substr(0, space);
    double value = 0;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || stop != number.data() + number.size() || !std::isfinite(value)) continue;
    const size_t brace = std::min(name.find('{'), name.size());
    page.series_.push_back({std::string(name.substr(0, brace)), std::string(name.substr(brace)), value});
  }
  return page;
}

std::optional<double> MetricsPage::sum(std::string_view family, std::string_view label) const {
  std::optional<double> sum;
  for (const Series& series : series_) {
    if (series.family == family && (label.empty() || series.labels.find(label) != std::string::npos))
      sum = sum.value_or(0) + series.value;
  }
  return sum;
}

std::optional<EngineStats> counters_of(const MetricsPage& page) {
  if (!page.sum("loralei_steps_total")) return std::nullopt;
  const auto count = [&](const char* family) { return whole(page.sum(family).value_or(0)); };
  EngineStats counted;
  counted.steps = static_cast<uint64_t>(count("loralei_steps_total"));
  counted.preemptions = static_cast<uint64_t>(count("loralei_preemptions_total"));
  counted.prefix_queries = static_cast<uint64_t>(count("loralei_prefix_cache_queries_total"));
  counted.prefix_hits = static_cast<uint64_t>(count("loralei_prefix_cache_hits_total"));
  counted.adapter_loads = static_cast<uint64_t>(count("loralei_adapter_loads_total"));
  counted.adapter_load_bytes = count("loralei_adapter_load_bytes_total");
  counted.adapter_evictions = static_cast<uint64_t>(count("loralei_adapter_evictions_total"));
  counted.adapter_loads_ahead = static_cast<uint64_t>(count("loralei_adapter_predicted_loads_total"));
  counted.adapter_loads_ahead_used = static_cast<uint64_t>(count("loralei_adapter_predicted_loads_used_total"));
  counted.adapter_uploads = static_cast<uint64_t>(count("loralei_adapter_uploads_total"));
  counted.adapter_upload_bytes = count("loralei_adapter_upload_bytes_total");
  for (size_t i = 0; i < kWaitCauses; ++i)
    counted.waited_s[i] =
        page.sum("loralei_request_wait_seconds_total", label_of("cause", kWaitCauseNames[i])).value_or(0);
  return counted;
}

ServedMemory memory_of(const MetricsPage& page) {
  const auto bytes = [&](const char* family, const char* use) {
    return whole(page.sum(family, label_of("use", use)).value_or(0));
  };
  constexpr const char* kHost = "loralei_memory_bytes";
  constexpr const char* kDevice = "loralei_device_memory_bytes";
  if (!page.sum(kDevice)) return {.kv_bytes = bytes(kHost, "kv_cache"), .adapter_bytes = bytes(kHost, "adapters_max")};
  return {.kv_bytes = bytes(kDevice, "kv_cache"),
          .adapter_bytes = bytes(kDevice, "adapters_max"),
          .host_adapter_bytes = bytes(kHost, "adapters_max")};
}

LoadSample sample_of(const MetricsPage& page, int64_t at_ns) {
  const auto number = [&](const char* family, const char* other) {
    return static_cast<int32_t>(
        std::min<int64_t>(INT32_MAX, whole(page.sum(family).value_or(page.sum(other).value_or(0)))));
  };
  LoadSample sample{.at_ns = at_ns};
  sample.running = number("loralei_requests_running", "vllm:num_requests_running");
  sample.waiting = number("loralei_requests_waiting", "vllm:num_requests_waiting") +
                   number("loralei_requests_waiting_for_adapter", "");
  const auto blocks = [&](const char* state) {
    return page.sum("loralei_kv_blocks", label_of("state", state)).value_or(0);
  };
  if (const double total = blocks("total"); total > 0) {
    const double block_bytes = static_cast<double>(memory_of(page).kv_bytes) / total;
    sample.kv_used_bytes = whole(blocks("used") * block_bytes);
    sample.kv_cached_bytes = whole(blocks("cached") * block_bytes);
  }
  const int64_t adapters = whole(page.sum("loralei_memory_bytes", label_of("use", "adapters")).value_or(0));
  sample.adapters_idle_bytes = std::min(adapters, whole(page.sum("loralei_adapters_idle_bytes").value_or(0)));
  sample.adapters_used_bytes = adapters - sample.adapters_idle_bytes;
  return sample;
}

}  // namespace loralei
