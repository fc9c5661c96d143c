// SPDX-License-Identifier: Apache-2.0
// Catalogue: which adapters exist by name, which versions of them, and the source that
// each name means now. It knows nothing of memory: that is the engine's.
//
// Thread-safe.
// Ownership: values in and out.
// Invariants: names are unique and not empty; list() is in order of registration, so that
// a place in it names an adapter (llama.cpp's ids) as long as none before it is removed;
// a source is another whenever the files of a name change, and never reused. A name means
// its newest version, the one with the highest number; "name@3" (version_name.h) means
// that one while it is kept, and the newest keep_versions of a name are.
// Failure: add() of a name that exists with another path, or beyond kMaxAdapters.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace loralei {

inline constexpr size_t kMaxAdapters = 100'000;

enum class AdapterOrigin : unsigned char { kCommandLine, kDirectory, kHttp };
const char* adapter_origin_name(AdapterOrigin origin);

struct CatalogueEntry {
  std::string name;
  std::string path;
  std::string root;  // the allowed root it lies below; empty for paths of the command line
  AdapterOrigin origin = AdapterOrigin::kCommandLine;
  int64_t created_s = 0;             // unix time of registration
  AdapterSourceId source;            // of new_source()
  std::shared_ptr<const void> keep;  // as long as somebody has it the engine knows the source
  int64_t number = 0;                // of the version; 0: it has none, and is not kept beside others
  std::string digest = {};           // of the version, in hex; empty: not known, or whatever its files give
};

class Catalogue {
 public:
  virtual ~Catalogue() = default;
  virtual AdapterSourceId new_source() = 0;
  // For the next version of a name, where nobody else numbers them: from 1 upward, and
  // never given again, even after the name was removed.
  virtual int64_t new_number(std::string_view name) = 0;
  // The same name and path again is no error and changes nothing.
  virtual Status add(CatalogueEntry entry) = 0;
  // One more version of a name that is there, in the place of what is not kept beside it,
  // which it answers, the oldest first; none, and nothing has changed, where the name is
  // not there.
  virtual std::optional<std::vector<CatalogueEntry>> replace(CatalogueEntry entry) = 0;
  // A name with all its versions, or one of them by "name@3"; what was removed, the
  // oldest first.
  virtual std::vector<CatalogueEntry> remove(std::string_view name) = 0;
  virtual std::optional<CatalogueEntry> find(std::string_view name) const = 0;    // or "name@3"
  virtual std::vector<CatalogueEntry> versions(std::string_view name) const = 0;  // all of it, the oldest first
  // By names: of each what it means now.
  virtual std::optional<CatalogueEntry> at(size_t place) const = 0;
  virtual std::vector<CatalogueEntry> list() const = 0;
  virtual size_t size() const = 0;
};

// keep_versions: >= 1.
std::unique_ptr<Catalogue> make_memory_catalogue(int64_t keep_versions = 1);
// "name@3" where the entry is a version that the name does not mean now, else "name".
std::string shown_name(const Catalogue& catalogue, const CatalogueEntry& entry);

}  // namespace loralei
