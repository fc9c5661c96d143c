// SPDX-License-Identifier: Apache-2.0
#include "http/proxy.h"

#include <array>
#include <vector>

#include "base/base64.h"
#include "http/message.h"

namespace loralei {
namespace {

// The first of them that says something.
std::pair<std::string, std::string> first_of(const Variable& variable, const std::vector<const char*>& names) {
  for (const char* const name : names) {
    if (auto value = variable(name); value && !value->empty()) return {name, *value};
  }
  return {};
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool asked_directly(std::string_view list, std::string_view host) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find_first_of(", "), list.size());
    std::string_view one = trimmed(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
    if (one == "*") return true;
    if (one.starts_with('[') && one.ends_with(']')) one = one.substr(1, one.size() - 2);
    while (one.starts_with('.')) one.remove_prefix(1);
    if (one.empty() || one.size() > host.size()) continue;
    const size_t before = host.size() - one.size();
    if (equals_ignoring_case(host.substr(before), one) && (before == 0 || host[before - 1] == '.')) return true;
  }
  return false;
}

Result<std::optional<HttpProxy>> proxy_of(const HttpUrl& url, const Variable& variable) {
  auto [name, value] = first_of(variable, url.tls ? std::vector<const char*>{"https_proxy", "HTTPS_PROXY"}
                                                  : std::vector<const char*>{"http_proxy"});
  if (value.empty()) std::tie(name, value) = first_of(variable, {"all_proxy", "ALL_PROXY"});
  if (value.empty()) return std::optional<HttpProxy>();
  if (asked_directly(first_of(variable, {"no_proxy", "NO_PROXY"}).second, url.host)) return std::optional<HttpProxy>();
  HttpProxy proxy;
  std::string address = value.find("://") == std::string::npos ? "http://" + value : value;
  const size_t begin = address.find("://") + 3;
  const size_t at = address.substr(0, address.find('/', begin)).rfind('@');
  if (at != std::string::npos && at >= begin) {
    const auto user = percent_decode(std::string_view(address).substr(begin, at - begin));
    if (!user) return invalid_argument(name + " has a user with a broken % escape.");
    proxy.authorization = "Basic " + base64_encode(*user);
    address.erase(begin, at + 1 - begin);
  }
  const auto parsed = parse_http_url(address);
  if (!parsed.ok() || parsed->tls) {
    return invalid_argument("The variable " + name +
                            " is no proxy that can be asked: write http://HOST:PORT, or unset it.");
  }
  proxy.host = parsed->host;
  // curl's own default.
  const bool stated =
      address.find(':', address.find(']') == std::string::npos ? begin : address.find(']')) != std::string::npos;
  proxy.port = stated ? parsed->port : 1080;
  return std::optional<HttpProxy>(std::move(proxy));
}

}  // namespace loralei
