// SPDX-License-Identifier: Apache-2.0
// The proxy that the environment names for an address, by curl's rules: https_proxy,
// HTTPS_PROXY, http_proxy (small letters only: a CGI's HTTP_PROXY comes from a client),
// all_proxy, ALL_PROXY, and no_proxy, NO_PROXY for what is asked directly.
//
// Thread: pure but for `variable`. Ownership: values. Failure: a sentence that names the
// variable, where its value is no http:// proxy.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/url.h"

namespace loralei {

struct HttpProxy {
  std::string host;
  int port = 0;
  std::string authorization;  // the value of Proxy-Authorization; empty: none
};

using Variable = std::function<std::optional<std::string>(const char*)>;  // sys/env.h's env_string

Result<std::optional<HttpProxy>> proxy_of(const HttpUrl& url, const Variable& variable);
// Whether a list as no_proxy has it ("localhost,.example.com,10.0.0.7" or "*") names the
// host, or a domain that it lies in.
bool asked_directly(std::string_view list, std::string_view host);

}  // namespace loralei
