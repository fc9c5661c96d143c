// SPDX-License-Identifier: Apache-2.0
// What requests cost of the server's memory, asked for before it is allocated.
//
// Thread: pure functions, on whoever owns the share. Ownership: borrow. Failure: an
// ApiError with the numbers: 413 where one request could never have so much, 429 where
// others have it now.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/byte_budget.h"
#include "serve/generation.h"
#include "wire/errors.h"

namespace loralei {

// The share has `bytes` from here on. `what` needs them: "Reading this request".
std::optional<ApiError> take_memory(ByteShare& share, const ByteBudget& budget, int64_t bytes, std::string_view what);

// What is said where there is no room.
Error no_memory(const ByteBudget& budget, int64_t bytes, std::string_view what);

// Of a body that is announced: itself, the tree it becomes, and what is made of it.
int64_t body_cost_bytes(int64_t body_bytes);

// Of a request between its parsing and its end, here and in the engine, without
// what it answers.
int64_t generation_bytes(const GenerationPlan& plan);
int64_t embedding_bytes(const std::vector<std::vector<TokenId>>& inputs);
// Of a token's log-probabilities in an answer that is collected until it is whole.
int64_t logprob_bytes(const WireLogprob& token);

}  // namespace loralei
