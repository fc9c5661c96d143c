// SPDX-License-Identifier: Apache-2.0
// GET /v1/queues: who waits in which queue of the scheduler and why, and who runs.
//
// Thread: any; the answer is made on the dispatcher's, when the engine has said how it
// stands between two steps.
// Ownership: none.
// Invariants: at most QueuesCommand::listed_max sequences of each queue are named, by the
// X-Request-Id that their clients have seen and their adapter's registered name; nothing
// of what they ask is told.
// Failure: answered to the client.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/api.h"
#include "serve/context.h"
#include "serve/reply.h"

namespace loralei {

void show_queues(const ServeContext& context, std::shared_ptr<Reply> reply);
// id_of: a request's public id; empty: it has ended meanwhile.
std::string queues_body(const QueuesState& state, const std::function<std::string(RequestId)>& id_of);

}  // namespace loralei
