// SPDX-License-Identifier: Apache-2.0
// DefaultAdapters: what POST /lora-adapters sets, as in llama.cpp: the adapters of
// requests that name none.
//
// Thread: any.
// Ownership: owns a few names.
// Invariants: names, never places, so that another adapter that is unloaded changes
// nothing; each once, none of scale 0, at most kMaxAdaptersPerRequest; replaced as a
// whole or not at all.
// A request is given them where it is resolved (serve/resolve.h), as if it had
// named them itself.
// Failure: set() with 400 and a sentence; a default that is not registered any more is
// refused by who resolves it.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "store/catalogue.h"
#include "wire/errors.h"
#include "wire/requests.h"

namespace loralei {

class DefaultAdapters {
 public:
  // `wanted`: by place in the catalogue as it is now, or by name, also that of a version.
  // The answer: what requests get now.
  Parsed<std::vector<AdapterRef>> set(const std::vector<AdapterRef>& wanted, const Catalogue& catalogue);
  std::vector<AdapterRef> now() const;
  bool hold(const std::string& name) const;

 private:
  mutable std::mutex mutex_;
  std::vector<AdapterRef> adapters_;
};

}  // namespace loralei
