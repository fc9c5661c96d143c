// SPDX-License-Identifier: Apache-2.0
// Registry: what is remembered of adapters beyond this process: under which name which
// version was loaded, from where, for which base model. The catalogue says what is served
// now; the registry what will be served after the next start.
//
// Thread-safe. Reads are of memory. Writes are taken into a bounded queue and answered
// later, on a thread of the registry, in the order in which they were taken; who is
// answered must not wait for the registry there.
// Ownership: values in and out.
// Invariants: a write is answered well only when it will be found after a crash; what it
// did can be read before it is answered, and what it did not do never. The versions of a
// name have numbers from 1 upward, which are never given to another, even after the name
// was removed. Of each name the newest `keep_versions` are kept. Others may write, too:
// two reads need not agree.
// Failure: put() and those that remove answer kOverloaded when the queue is full and
// kUnavailable after stop(): then nothing is called. Everything later (disk full, file
// gone) comes with the answer, and nothing has changed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/catalogue.h"

namespace loralei {

// One version of an adapter.
struct AdapterRecord {
  std::string name;
  int64_t number = 0;     // of the version; the registry gives it
  std::string digest;     // of config and weights, in hex (Adapter::digest)
  std::string base;       // the base model that it was loaded for (WeightStore::fingerprint)
  std::string path;       // resolved
  std::string root;       // the allowed root that it lay below
  std::string stamp;      // of the files it was loaded from; empty: not known
  int32_t rank = 0;       // the largest
  int64_t bytes = 0;      // in memory
  int64_t created_s = 0;  // unix time of the load
  AdapterOrigin origin = AdapterOrigin::kHttp;

  friend bool operator==(const AdapterRecord&, const AdapterRecord&) = default;
};

class Registry {
 public:
  // The number of the version that was written, or of the newest that was removed;
  // 0: there was none to remove.
  using Done = std::function<void(const Result<int64_t>&)>;

  virtual ~Registry() = default;  // stop()
  // The newest version of that name.
  virtual std::optional<AdapterRecord> find(std::string_view name) const = 0;
  // All of that name, the oldest first.
  virtual std::vector<AdapterRecord> versions(std::string_view name) const = 0;
  // All versions that are kept, by name, the oldest first.
  virtual std::vector<AdapterRecord> list() const = 0;
  // A new version of record.name, which is given its number; or with a number one that
  // was removed, again. `had`: the newest number that the caller has of the name. Where
  // others write, too, and one of them has put the same files since (digest, base and
  // path), that is the version: all servers of a fleet are asked to load the same.
  virtual Status put(AdapterRecord record, Done done, int64_t had = INT64_MAX) = 0;
  // All versions of the name.
  virtual Status remove(const std::string& name, Done done) = 0;
  // One of them; number > 0.
  virtual Status remove_version(const std::string& name, int64_t number, Done done) = 0;
  // Writes and answers what was taken, and takes nothing more. Any number of times.
  virtual void stop() = 0;
};

}  // namespace loralei
