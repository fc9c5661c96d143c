// SPDX-License-Identifier: Apache-2.0
// For tests of registries, whatever they are kept in: records, calls that wait, and what
// a registry is to be.
#pragma once

#include <deque>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "store/registry.h"

namespace loralei::test {

inline AdapterRecord record(const std::string& name, const std::string& digest = "d") {
  AdapterRecord made;
  made.name = name;
  made.digest = digest;
  made.base = "base";
  made.path = "/adapters/" + name;
  made.root = "/adapters";
  made.stamp = "1:2:3";
  made.rank = 16;
  made.bytes = 1 << 20;
  made.created_s = 1'700'000'000;
  return made;
}

inline Result<int64_t> put(Registry& registry, AdapterRecord one, int64_t had = INT64_MAX) {
  std::promise<Result<int64_t>> answer;
  TRY(registry.put(
      std::move(one), [&](const Result<int64_t>& number) { answer.set_value(number); }, had));
  return answer.get_future().get();
}

inline Result<int64_t> remove(Registry& registry, const std::string& name) {
  std::promise<Result<int64_t>> answer;
  TRY(registry.remove(name, [&](const Result<int64_t>& number) { answer.set_value(number); }));
  return answer.get_future().get();
}

inline Result<int64_t> remove(Registry& registry, const std::string& name, int64_t number) {
  std::promise<Result<int64_t>> answer;
  TRY(registry.remove_version(name, number, [&](const Result<int64_t>& one) { answer.set_value(one); }));
  return answer.get_future().get();
}

// What the registry is to be, in a few lines.
struct Naive {
  int64_t keep;
  std::map<std::string, int64_t> last;
  std::map<std::string, std::deque<AdapterRecord>> kept;

  int64_t put(AdapterRecord one) {
    one.number = ++last[one.name];
    auto& versions = kept[one.name];
    versions.push_back(one);
    if (static_cast<int64_t>(versions.size()) > keep) versions.pop_front();
    return one.number;
  }
  int64_t remove(const std::string& name) {
    const auto known = kept.find(name);
    if (known == kept.end()) return 0;
    const int64_t newest = known->second.back().number;
    kept.erase(known);
    return newest;
  }
  int64_t remove(const std::string& name, int64_t number) {
    const auto known = kept.find(name);
    if (known == kept.end()) return 0;
    const auto is_it = [number](const AdapterRecord& one) { return one.number == number; };
    if (std::erase_if(known->second, is_it) == 0) return 0;
    if (known->second.empty()) kept.erase(known);
    return number;
  }
  std::vector<AdapterRecord> list() const {
    std::vector<AdapterRecord> all;
    for (const auto& [name, versions] : kept) all.insert(all.end(), versions.begin(), versions.end());
    return all;
  }
};

}  // namespace loralei::test
