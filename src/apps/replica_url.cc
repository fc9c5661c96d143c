// SPDX-License-Identifier: Apache-2.0
#include "apps/replica_url.h"

#include <charconv>
#include <string_view>

#include "base/printable.h"

namespace loralei {
namespace {

constexpr int kPortMost = 65'535;
constexpr size_t kHostBytesMost = 253;  // of a name, as DNS has it

Error no_url(const std::string& text, const std::string& why) {
  return invalid_argument("'" + printable(text) + "' is no replica: " + why + "; give it as http://HOST:PORT");
}

}  // namespace

Result<UpstreamAddress> parse_replica_url(const std::string& text) {
  std::string_view rest = text;
  if (rest.starts_with("https://"))
    return no_url(text,
                  "a router speaks plain HTTP to its replicas; let them listen without TLS on a network of their own, "
                  "and give the router the certificate (--ssl-certfile)");
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find_first_of("/?#@ \t") != std::string_view::npos) return no_url(text, "it has more than host and port");
  UpstreamAddress address{.host = "", .port = kReplicaPort};
  std::string_view port;
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == std::string_view::npos) return no_url(text, "a bracket is not closed");
    address.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (!rest.empty() && !rest.starts_with(':')) return no_url(text, "no port follows the bracket");
    port = rest.empty() ? rest : rest.substr(1);
    if (!rest.empty() && port.empty()) return no_url(text, "the port is empty");
  } else {
    const size_t colon = rest.find(':');
    if (colon != rest.rfind(':')) return no_url(text, "an IPv6 address needs brackets");
    address.host = rest.substr(0, colon);
    if (colon != std::string_view::npos) {
      port = rest.substr(colon + 1);
      if (port.empty()) return no_url(text, "the port is empty");
    }
  }
  if (address.host.empty() || address.host.size() > kHostBytesMost) return no_url(text, "the host is missing");
  if (port.empty()) return address;
  const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool whole = problem == std::errc() && end == port.data() + port.size();
  if (!whole || address.port < 1 || address.port > kPortMost) return no_url(text, "the port is no number up to 65535");
  return address;
}

std::string server_url(const std::string& host, int port, bool secure) {
  const bool bare_ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return (secure ? "https://" : "http://") + (bare_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace loralei
