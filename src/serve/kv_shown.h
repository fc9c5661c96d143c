// SPDX-License-Identifier: Apache-2.0
// GET /v1/kv: what the KV cache holds and for whom.
//
// Thread: any; the answer is made on the dispatcher's, when the engine has said how it
// stands between two steps.
// Ownership: none.
// Invariants: at most KvCommand::listed_max holders are named. Neither a text nor a salt
// is told.
// Failure: answered to the client.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/api.h"
#include "serve/context.h"
#include "serve/reply.h"
#include "store/catalogue.h"

namespace loralei {

void show_kv(const ServeContext& context, const Catalogue& catalogue, std::shared_ptr<Reply> reply);
// Registered names by versions, of those that the holders have. Where one is missing, no
// adapter has that version any more.
using KvNames = std::map<std::string, std::string>;
KvNames kv_names(const KvState& state, const AdapterList& adapters, const Catalogue& catalogue);
std::string kv_body(const KvState& state, const KvNames& names);

}  // namespace loralei
