// SPDX-License-Identifier: Apache-2.0
#include "apps/key_flags.h"

#include "serve/access.h"

namespace loralei {

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t") == std::string::npos; }

std::string refuse_key(const std::string& key) {
  if (is_blank(key)) return "the key is empty; give one, or leave the option out for a server without";
  const Status status = check_key(key);
  return status.ok() ? "" : status.error().message;
}

}  // namespace loralei
