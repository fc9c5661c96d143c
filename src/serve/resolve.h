// SPDX-License-Identifier: Apache-2.0
// From the names in a request to registered adapters, or versions of them ("name@3"). It
// never loads and never falls back to the base.
// Thread: any; reads the catalogue. Ownership: values. Failure: 404 with param for names
// that nobody registered, and without one for a default that is registered no longer;
// 400 for contradictions.
#pragma once

#include <string>
#include <vector>

#include "engine/api.h"
#include "store/catalogue.h"
#include "wire/errors.h"
#include "wire/key_file.h"
#include "wire/requests.h"

namespace loralei {

struct ResolvedModel {
  std::string shown;                    // what the answer's `model` says: the name asked for
  std::vector<AdapterUse> adapters;     // without those of scale 0; empty = the base
  std::string label;                    // registered names joined by '+', without versions; empty = the base
  std::vector<CatalogueEntry> entries;  // of `adapters`
};
// The engine knows no names: what it says of a source that is gone is told with them, and
// what it says of an adapter's files with the version that was asked for.
Error with_names(Error error, const ResolvedModel& model);
// Of "name@3" that is not there, though "name" is: which versions there are, as a
// sentence to be appended; empty otherwise.
std::string versions_there(const std::string& name, const Catalogue& catalogue);
// `defaults`: the adapters of a request that names none and the base, as if it had named
// them (DefaultAdapters).
Parsed<ResolvedModel> resolve_model(const ModelRef& ref, const std::vector<std::string>& model_names,
                                    const Catalogue& catalogue, const std::vector<AdapterRef>& defaults = {});
// The same for a key that may not use all adapters: what it may not use is as what is not
// there. `key`: null: everything may be used.
Parsed<ResolvedModel> resolve_model_for(const NamedKey* key, const ModelRef& ref,
                                        const std::vector<std::string>& model_names, const Catalogue& catalogue,
                                        const std::vector<AdapterRef>& defaults = {});

}  // namespace loralei
