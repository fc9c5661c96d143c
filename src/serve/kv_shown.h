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

#include <functional>
#include <memory>
#include <string>

#include "engine/api.h"
#include "serve/context.h"
#include "serve/reply.h"
#include "store/catalogue.h"

namespace loralei {

void show_kv(const ServeContext& context, const Catalogue& catalogue, std::shared_ptr<Reply> reply);
// name_of: an adapter's registered name by its version; empty: none has it any more.
std::string kv_body(const KvState& state, const std::function<std::string(const std::string&)>& name_of);

}  // namespace loralei
