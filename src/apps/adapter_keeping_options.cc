// SPDX-License-Identifier: Apache-2.0
// The options that say which adapters are in memory.
#include <map>
#include <string>
#include <vector>

#include "apps/options.h"

namespace loralei {
namespace {

const std::map<std::string, AdapterKeeping> kAdapterKeeping = {{"none", AdapterKeeping::none()},
                                                               {"lru", {.policy = KeepPolicy::kLru}},
                                                               {"fair-share", {.policy = KeepPolicy::kFairShare}},
                                                               {"chameleon", {.policy = KeepPolicy::kChameleon}},
                                                               {"density", {.policy = KeepPolicy::kDensity}}};

}  // namespace

void add_adapter_keeping_options(CLI::App& command, AdapterKeeping& keeping, const std::string& group) {
  std::vector<std::string> names;
  for (const auto& [name, kept] : kAdapterKeeping) names.push_back(name);
  command
      .add_option_function<std::string>(
          "--adapter-cache",
          [&keeping](const std::string& name) {
            const AdapterKeeping& named = kAdapterKeeping.at(name);
            keeping.keeps = named.keeps;
            keeping.policy = named.policy;
          },
          "which adapters leave memory when others need their room, of those that no request uses or waits with: lru "
          "(the one used longest ago), chameleon (by uses, last use and size; see --adapter-cache-weights), fair-share "
          "(the same, equally weighted), density (whose memory saves the least time of loading), or none (all leave at "
          "once, but for pinned ones)")
      ->check(CLI::IsMember(names))
      ->default_str("density")
      ->group(group);
  command
      .add_option_function<std::vector<double>>(
          "--adapter-cache-weights",
          [&keeping](const std::vector<double>& weights) {
            keeping.weights = {weights[0], weights[1], weights[2]};
          },
          "of uses, last use and size, for --adapter-cache chameleon")
      ->expected(3)
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1e6))
      ->default_str("0.45,0.1,0.45")
      ->group(group);
  command
      .add_option(
          "--adapter-prefetch", keeping.prefetch,
          "which adapters come to memory before they are needed: queue (those of waiting requests) or histogram "
          "(and those that are expected soon, by when they were used so far)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, AdapterPrefetch>{
          {"queue", AdapterPrefetch::kQueue}, {"histogram", AdapterPrefetch::kHistogram}}))
      ->default_str("queue")
      ->group(group);
}

}  // namespace loralei
