// SPDX-License-Identifier: Apache-2.0
// What a registry in etcd keeps of one name: its versions and the number that the last
// one had, as one value, so that whoever changes it changes it as a whole.
//
// Thread: pure functions. Ownership: values.
// Invariants: versions are sorted by number, without a number twice, none above `last`.
// Failure: kCorrupt for what is no such value, kUnsupported for one of a newer program,
// kTooLarge for more than one value holds, kInvalidArgument for text that is not UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/registry.h"

namespace loralei {

// A write that was done, by a word of its writer's, who may not have heard of it.
struct RegistryDone {
  std::string word;
  int64_t number = 0;  // as it is answered
  friend bool operator==(const RegistryDone&, const RegistryDone&) = default;
};

struct RegistryValue {
  int64_t last = 0;
  std::vector<AdapterRecord> versions;
  std::vector<RegistryDone> done;  // the last kRegistryDoneMost, the oldest first
  friend bool operator==(const RegistryValue&, const RegistryValue&) = default;
};

inline constexpr size_t kRegistryDoneMost = 8;

Result<std::string> registry_value_text(const RegistryValue& value);
Result<RegistryValue> parse_registry_value(std::string_view name, std::string_view text);

// What the calls of Registry do to it; each answers as they do (Registry::Done).
int64_t put_version(RegistryValue& value, AdapterRecord record, int64_t keep_versions);
// The newest version where it is of the same files and newer than `had`; else 0.
int64_t same_since(const RegistryValue& value, const AdapterRecord& record, int64_t had);
int64_t remove_versions(RegistryValue& value, int64_t number);  // 0: all
void add_done(RegistryValue& value, RegistryDone done);

}  // namespace loralei
