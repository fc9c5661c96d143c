// SPDX-License-Identifier: Apache-2.0
// Which application a request is of: the header X-App-Id, or `app_id` of its body.
//
// Thread: pure functions. Failure: an ApiError (400) that names the header or the field.
#pragma once

#include <string>

#include "http/message.h"
#include "wire/errors.h"

namespace loralei {

// Empty: there is none. One that comes twice, or holds what no id may hold, is refused.
Parsed<std::string> parse_app_header(const HttpHead& request);
// Where both name one, they must be the same.
Parsed<std::string> app_of(const std::string& header, const std::string& field);

}  // namespace loralei
