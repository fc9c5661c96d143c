// SPDX-License-Identifier: Apache-2.0
// What a request wants of time, as gateways send it (llm-d): the headers
// x-llm-d-slo-ttft-ms, from its arrival to its first token, and x-llm-d-slo-tpot-ms,
// between its tokens.
//
// Thread: pure functions. Failure: a value that is no number above 0 and at most
// kSloMostMs, or a header that comes twice, is an ApiError (400) that names the header.
#pragma once

#include "engine/api.h"
#include "http/message.h"
#include "wire/errors.h"

namespace loralei {

inline constexpr double kSloMostMs = 3'600'000;  // an hour

Parsed<RequestSlo> parse_request_slo(const HttpHead& request);
// The same, for what is handed to the engine so long after the request arrived. What is
// over already stays asked for, so that it is counted.
RequestSlo slo_left(const RequestSlo& slo, int64_t elapsed_ns);

}  // namespace loralei
