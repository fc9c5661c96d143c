// SPDX-License-Identifier: Apache-2.0
// What a server answers to POST /v1/adapters, as read by who passed the upload on, and
// what it then asks the other servers.
//
// Thread: pure functions and plain values.
// Invariants of a parsed answer that names an adapter: the name is of at most
// kMaxNameBytes, the path that of a store ("store:DIGEST...").
// Failure: a sentence that names the field.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/requests.h"

namespace loralei {

// As which it was loaded there, which is what others are asked to load. Nothing: it was
// stored, and not loaded.
Result<std::optional<LoadLoraRequest>> parse_upload_answer(std::string_view body);
// The body of POST /v1/load_lora_adapter.
std::string load_lora_body(const LoadLoraRequest& request);

}  // namespace loralei
