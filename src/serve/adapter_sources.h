// SPDX-License-Identifier: Apache-2.0
// AdapterSources: how long the engine knows a source. The catalogue's entry and every
// request that was resolved to it share its keep; when the last of them is gone, nobody
// can name the source any more, and the engine is told to drop it.
//
// Thread: any. Ownership: borrows dispatcher and texts; a keep may outlive it and then
// does nothing. Invariants: the engine is told once for each source. Failure: a drop that
// the engine does not take is told again with the next one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "serve/dispatcher.h"
#include "serve/text_model.h"
#include "store/catalogue.h"

namespace loralei {

// What was loaded over HTTP is one version: with other files at its path it is an error,
// not another adapter.
inline AdapterSourceSpec source_spec(const CatalogueEntry& entry) {
  return {entry.source, entry.name, entry.path, entry.digest, entry.origin == AdapterOrigin::kHttp};
}

class AdapterSources : public std::enable_shared_from_this<AdapterSources> {
 public:
  AdapterSources(Dispatcher& dispatcher, TextModels& texts) : dispatcher_(dispatcher), texts_(texts) {}

  // `digest`: of the adapter of the store whose files it has; empty: they are elsewhere.
  std::shared_ptr<const void> keep(AdapterSourceId source, const std::string& digest = "");
  // The same of a source that is not kept yet: as long as somebody has it.
  std::shared_ptr<const void> use(const std::string& digest);
  bool uses(const std::string& digest) const;
  // Called, on any thread, when a digest whose sources were kept has no use any more.
  void set_unused(std::function<void(const std::string& digest)> unused) { unused_ = std::move(unused); }
  // Now, whoever has a keep of it.
  Status drop(const AdapterSourceSpec& source, Dispatcher::ReplyCallback done);

 private:
  void let_go(AdapterSourceId source);
  void end_use(const std::string& digest);

  Dispatcher& dispatcher_;
  TextModels& texts_;
  std::function<void(const std::string&)> unused_;
  mutable std::mutex mutex_;
  std::set<AdapterSourceId> dropped_;    // though there is a keep
  std::set<AdapterSourceId> not_taken_;  // by the engine
  struct Uses {
    int count = 0;
    bool kept = false;
  };
  std::map<std::string, Uses> uses_;  // by digest
};

}  // namespace loralei
