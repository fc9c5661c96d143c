// SPDX-License-Identifier: Apache-2.0
// Catalogue: which adapters exist by name, and the source that each name means now. It
// knows nothing of memory: that is the engine's.
//
// Thread-safe.
// Ownership: values in and out.
// Invariants: names are unique and not empty; list() is in order of registration, so that
// a place in it names an adapter (llama.cpp's ids) as long as none before it is removed;
// a source is another whenever the files of a name change, and never reused.
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
};

class Catalogue {
 public:
  virtual ~Catalogue() = default;
  virtual AdapterSourceId new_source() = 0;
  // The same name and path again is no error and changes nothing.
  virtual Status add(CatalogueEntry entry) = 0;
  // Puts the entry in the place of the one of its name, which it answers; none, and
  // nothing has changed, where that is not there.
  virtual std::optional<CatalogueEntry> replace(CatalogueEntry entry) = 0;
  virtual bool remove(std::string_view name) = 0;
  virtual std::optional<CatalogueEntry> find(std::string_view name) const = 0;
  virtual std::optional<CatalogueEntry> at(size_t place) const = 0;
  virtual std::vector<CatalogueEntry> list() const = 0;
  virtual size_t size() const = 0;
};

std::unique_ptr<Catalogue> make_memory_catalogue();

}  // namespace loralei
