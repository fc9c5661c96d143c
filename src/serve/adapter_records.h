// SPDX-License-Identifier: Apache-2.0
// AdapterRecords: the registry as the adapter service uses it: which records are of this
// base model, and who is changing a name now.
//
// Thread: any.
// Ownership: owns the registry.
// Invariants: of one name at most one claim is held, so that catalogue and registry
// change in the same order.
// Failure: claim() of a name that is claimed.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/registry.h"

namespace loralei {

// What a server that keeps records is given.
struct RegistryUse {
  std::unique_ptr<Registry> registry;
  std::string base;  // AdapterRecord::base of the model that is served
  // AdapterRecord::stamp of the files that are at the path now, without reading them.
  std::function<Result<std::string>(const std::string& path)> stamp;
};

class AdapterRecords {
 public:
  // The right to change what a name means; given back by release() or at the end.
  class Claim {
   public:
    Claim(AdapterRecords& records, std::string name) : records_(records), name_(std::move(name)) {}
    ~Claim() { release(); }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    void release();  // once

   private:
    AdapterRecords& records_;
    const std::string name_;
    bool released_ = false;
  };

  explicit AdapterRecords(RegistryUse use) : use_(std::move(use)) {}

  Registry& registry() { return *use_.registry; }
  const std::string& base() const { return use_.base; }
  Result<std::shared_ptr<Claim>> claim(const std::string& name);
  // The records of that name that are of this base, the oldest first; or of "name@3" that
  // one, unless something has just that name.
  std::vector<AdapterRecord> find(const std::string& name) const;
  // An error where the name is that of an adapter of another base.
  Status check_base(const std::string& name) const;
  std::string stamp(const std::string& path) const;  // empty: not known

 private:
  const RegistryUse use_;
  std::mutex mutex_;
  std::set<std::string> claimed_;  // guarded by mutex_
};

}  // namespace loralei
