// SPDX-License-Identifier: Apache-2.0
// What a server's /metrics page says, as far as benches ask: Loralei's own families, and
// of others what vLLM names.
//
// Plain values and pure functions; a page of any bytes is read (what is not a series is
// passed over).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api.h"
#include "workload/served.h"

namespace loralei {

class MetricsPage {
 public:
  static MetricsPage parse(std::string_view text);
  // Of all series of the family that have this label, as `name="value"` (empty: of all of
  // the family); none: there is no such series.
  std::optional<double> sum(std::string_view family, std::string_view label = {}) const;

 private:
  struct Series {
    std::string family, labels;
    double value = 0;
  };
  std::vector<Series> series_;
};

// The counters that add_count_rows() shows; none: the server does not count them.
std::optional<EngineStats> counters_of(const MetricsPage& page);
LoadSample sample_of(const MetricsPage& page, int64_t at_ns);

// Bytes that steps read from: of the device where there is one. 0: it does not say.
struct ServedMemory {
  int64_t kv_bytes = 0, adapter_bytes = 0, host_adapter_bytes = 0;
};
ServedMemory memory_of(const MetricsPage& page);

}  // namespace loralei
