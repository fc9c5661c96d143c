// SPDX-License-Identifier: Apache-2.0
// Catalogue: which adapters exist by name and where their files are. It knows nothing of
// memory: that is the engine's.
//
// Thread-safe.
// Ownership: values in and out.
// Invariants: names are unique and not empty; list() is in order of registration, so that
// a place in it names an adapter (llama.cpp's ids) as long as none before it is removed;
// `generation` changes whenever the entry of a name changes and is never reused.
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
  int64_t created_s = 0;    // unix time of registration
  uint64_t generation = 0;  // of new_generation(), or 0: chosen by add()
};

class Catalogue {
 public:
  virtual ~Catalogue() = default;
  // For an entry that is to be added later, where it must be known before.
  virtual uint64_t new_generation() = 0;
  // Adds the entry, or replaces the one of that name when `replace`. The same name and
  // path again is no error and changes nothing.
  virtual Status add(CatalogueEntry entry, bool replace) = 0;
  virtual bool remove(std::string_view name) = 0;
  virtual std::optional<CatalogueEntry> find(std::string_view name) const = 0;
  virtual std::optional<CatalogueEntry> at(size_t place) const = 0;
  virtual std::vector<CatalogueEntry> list() const = 0;
  virtual size_t size() const = 0;
};

std::unique_ptr<Catalogue> make_memory_catalogue();

}  // namespace loralei
