// SPDX-License-Identifier: Apache-2.0
// From the names in a request to registered adapters. It never loads and never falls back to the base.
// Thread: any; reads the catalogue. Ownership: values. Failure: 404 with param for names that nobody registered, 400
// for contradictions.
#pragma once

#include <string>
#include <vector>

#include "engine/api.h"
#include "store/catalogue.h"
#include "wire/errors.h"
#include "wire/requests.h"

namespace loralei {

struct ResolvedModel {
  std::string shown;                    // what the answer's `model` says: the name asked for
  std::vector<AdapterUse> adapters;     // without those of scale 0; empty = the base
  std::string label;                    // registered names joined by '+'; empty = the base
  std::vector<CatalogueEntry> entries;  // of `adapters`
};
Parsed<ResolvedModel> resolve_model(const ModelRef& ref, const std::vector<std::string>& model_names,
                                    const Catalogue& catalogue);

}  // namespace loralei
