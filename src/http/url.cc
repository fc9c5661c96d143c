// SPDX-License-Identifier: Apache-2.0
#include "http/url.h"

#include <algorithm>
#include <charconv>

#include "base/printable.h"
#include "http/message.h"

namespace loralei {
namespace {

constexpr size_t kMaxUrlBytes = 16 * 1024;
constexpr size_t kShownBytes = 200;

std::string shown(std::string_view text) { return "'" + printable(text, kShownBytes) + "'"; }

std::string small_letters(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool is_host(std::string_view host, bool bracketed) {
  const std::string_view more = bracketed ? ":." : "-._";
  return !host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || more.find(c) != std::string_view::npos;
  });
}

Status read_port(std::string_view text, std::string_view whole, int& port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535)
    return invalid_argument(shown(whole) + " has a port that is none.");
  return {};
}

}  // namespace

std::string HttpUrl::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (tls ? 443 : 80) ? name : name + ":" + std::to_string(port);
}

std::string HttpUrl::origin() const { return (tls ? "https://" : "http://") + authority(); }

bool HttpUrl::same_origin(const HttpUrl& other) const {
  return tls == other.tls && host == other.host && port == other.port;
}

Result<HttpUrl> parse_http_url(std::string_view text) {
  const std::string_view whole = text;
  if (text.size() > kMaxUrlBytes) return too_large("An address has more than 16384 bytes.");
  const bool lines = std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f;
  });
  if (lines) return invalid_argument(shown(whole) + " holds a character that no address has.");
  HttpUrl url;
  const size_t colon = text.find("://");
  const std::string scheme = colon == std::string_view::npos ? "" : small_letters(text.substr(0, colon));
  if (scheme != "http" && scheme != "https")
    return invalid_argument(shown(whole) + " is no address of http:// or https://.");
  url.tls = scheme == "https";
  url.port = url.tls ? 443 : 80;
  text.remove_prefix(colon + 3);
  const size_t end = std::min(text.find_first_of("/?#"), text.size());
  std::string_view authority = text.substr(0, end);
  std::string_view rest = text.substr(end);
  rest = rest.substr(0, rest.find('#'));
  url.target = rest.starts_with('/') ? std::string(rest) : "/" + std::string(rest);
  if (authority.find('@') != std::string_view::npos)
    return invalid_argument("An address names a user, which is not followed; give it without.");
  const bool bracketed = authority.starts_with('[');
  const size_t host_end = bracketed ? authority.find(']') : std::min(authority.find(':'), authority.size());
  if (host_end == std::string_view::npos) return invalid_argument(shown(whole) + " has no host.");
  url.host = small_letters(bracketed ? authority.substr(1, host_end - 1) : authority.substr(0, host_end));
  authority.remove_prefix(host_end + (bracketed ? 1 : 0));
  if (!is_host(url.host, bracketed)) return invalid_argument(shown(whole) + " has no host.");
  if (authority.empty()) return url;
  if (!authority.starts_with(':')) return invalid_argument(shown(whole) + " has no host.");
  TRY(read_port(authority.substr(1), whole, url.port));
  return url;
}

Result<HttpUrl> resolve_location(const HttpUrl& from, std::string_view location) {
  const size_t colon = location.find(':');
  const size_t slash = location.find_first_of("/?#");
  if (location.empty()) return invalid_argument("a redirect names no place.");
  if (colon != std::string_view::npos && (slash == std::string_view::npos || colon < slash))
    return parse_http_url(location);
  const std::string scheme = from.tls ? "https:" : "http:";
  if (location.starts_with("//")) return parse_http_url(scheme + std::string(location));
  if (location.starts_with('/')) return parse_http_url(from.origin() + std::string(location));
  const std::string path = from.target.substr(0, from.target.find('?'));
  return parse_http_url(from.origin() + path.substr(0, path.rfind('/') + 1) + std::string(location));
}

}  // namespace loralei
