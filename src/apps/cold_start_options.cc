// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "apps/options.h"

namespace loralei {

void add_cold_start_options(CLI::App& command, EngineOptions& engine, const std::string& group) {
  std::map<std::string, ColdStart> ways;
  for (size_t i = 0; i < kColdStartNames.size(); ++i) ways[kColdStartNames[i]] = static_cast<ColdStart>(i);
  command
      .add_option("--cold-start", engine.cold_start,
                  "what a request does whose adapter is not where steps compute: layered (it begins when every layer "
                  "will be there before it is needed), assisted (it begins at once, and helper processes compute what "
                  "has not arrived on a device), auto (whichever answers first), ondemand (it waits for all of it) or "
                  "cached (all adapters are loaded at start and stay); with a GPU it waits unless a way is stated here")
      ->transform(CLI::CheckedTransformer(ways))
      ->each([&engine](const std::string&) { engine.cold_start_stated = true; })
      ->default_str("auto")
      ->group(group);
  command
      .add_option("--assist-helpers", engine.assist_helpers,
                  "processes that compute for --cold-start assisted or auto, one core each (default: one for each core "
                  "that --threads leaves, with a GPU none; 0: none)")
      ->check(CLI::Range(0, kMaxAssistHelpers))
      ->group(group);
}

}  // namespace loralei
