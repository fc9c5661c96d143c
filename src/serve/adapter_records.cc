// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_records.h"

#include "store/version_name.h"

namespace loralei {

void AdapterRecords::Claim::release() {
  const std::lock_guard lock(records_.mutex_);
  if (!std::exchange(released_, true)) records_.claimed_.erase(name_);
}

Result<std::shared_ptr<AdapterRecords::Claim>> AdapterRecords::claim(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (claimed_.insert(name).second) return std::make_shared<Claim>(*this, name);
  return Error{ErrorCode::kOverloaded, "The adapter '" + name.substr(0, 200) +
                                           "' is being loaded or unloaded by another request; try again when that has "
                                           "been answered."};
}

std::vector<AdapterRecord> AdapterRecords::find(const std::string& name) const {
  std::vector<AdapterRecord> found = use_.registry->versions(name);
  if (const auto wanted = parse_version_name(name); found.empty() && wanted) {
    found = use_.registry->versions(wanted->name);
    std::erase_if(found, [&](const AdapterRecord& one) { return one.number != wanted->number; });
  }
  std::erase_if(found, [this](const AdapterRecord& one) { return one.base != use_.base; });
  return found;
}

Status AdapterRecords::check_base(const std::string& name) const {
  const auto record = use_.registry->find(name);
  if (!record || record->base == use_.base) return {};
  return invalid_argument(
      "The registry holds an adapter '" + name.substr(0, 200) + "' of another base model, from " + record->path +
      ". To replace it, set 'load_inplace' to true; or choose another name, or another --registry.");
}

std::string AdapterRecords::stamp(const std::string& path) const {
  const auto stamp = use_.stamp(path);
  return stamp.ok() ? *stamp : "";
}

}  // namespace loralei
