// SPDX-License-Identifier: Apache-2.0
// The page for browsers, as answers: which request wants it, and its files with the
// headers that keep it to itself.
//
// Thread: any.
// Ownership: answers are values.
// Invariants: every answer forbids scripts, styles and requests from elsewhere, inline
// scripts and styles, and to be shown inside of another page. It says nothing of the
// server: whatever the page shows it asks for with the user's key. A file's ETag is a
// digest of its bytes.
// Failure: no answer where there is no such file.
#pragma once

#include <optional>
#include <string_view>

#include "http/message.h"

namespace loralei {

// Of GET /: browsers ask for HTML, everybody else is answered with text. Either answer
// says "Vary: Accept".
bool wants_page(const HttpHead& request);
HttpResponse page_answer(const HttpHead& request);
// GET /dashboard/{name}.
std::optional<HttpResponse> page_file_answer(std::string_view name, const HttpHead& request);

}  // namespace loralei
