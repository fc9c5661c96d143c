// SPDX-License-Identifier: Apache-2.0
#include "epp/endpoint.h"

#include <arpa/inet.h>

#include <charconv>

namespace loralei {
namespace {

constexpr size_t kHostBytesMost = INET6_ADDRSTRLEN;
constexpr int kPortMost = 65'535;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// inet_pton takes a text that ends with 0, so none that holds one.
std::optional<std::string> numeric_host(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  if (text.empty() || text.size() >= kHostBytesMost || text.find('\0') != std::string_view::npos) return std::nullopt;
  const std::string host(text);
  unsigned char bytes[sizeof(in6_addr)];
  char form[INET6_ADDRSTRLEN];
  for (const int family : {AF_INET, AF_INET6}) {
    if (inet_pton(family, host.c_str(), bytes) == 1) return inet_ntop(family, bytes, form, sizeof form);
  }
  return std::nullopt;
}

}  // namespace

std::optional<UpstreamAddress> numeric_address(const UpstreamAddress& address) {
  const auto host = numeric_host(address.host);
  if (!host) return std::nullopt;
  return UpstreamAddress{*host, address.port};
}

std::optional<UpstreamAddress> parse_endpoint(std::string_view text) {
  text = trimmed(text);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view host = text.substr(0, colon), digits = text.substr(colon + 1);
  const bool bare_ipv6 = host.find(':') != std::string_view::npos && !host.starts_with('[');
  if (bare_ipv6) return std::nullopt;  // its last number and a port look alike
  UpstreamAddress address;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  const bool whole = problem == std::errc() && end == digits.data() + digits.size();
  if (!whole || address.port < 1 || address.port > kPortMost) return std::nullopt;
  address.host = host;
  return numeric_address(address);
}

}  // namespace loralei
