// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "base/printable.h"
#include "store/etcd_client.h"

namespace loralei {
namespace {

constexpr int kEtcdPort = 2379, kPortMost = 65'535;
constexpr size_t kEndpointsMost = 16, kHostBytesMost = 253;

Error no_endpoint(std::string_view text, const std::string& why) {
  return invalid_argument("'" + printable(text) + "' is no endpoint of etcd: " + why +
                          "; give HOST:PORT, several between commas");
}

Result<UpstreamAddress> parse_endpoint(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("https://")) return no_endpoint(text, "TLS is not supported");
  for (const std::string_view scheme : {"http://", "etcd://"}) {
    if (rest.starts_with(scheme)) rest.remove_prefix(scheme.size());
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find_first_of("/?#@ \t") != std::string_view::npos)
    return no_endpoint(text, "it has more than host and port");
  UpstreamAddress address{.host = "", .port = kEtcdPort};
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == std::string_view::npos) return no_endpoint(text, "a bracket is not closed");
  const size_t colon = rest.find(':', bracket);
  address.host = bracket > 0 ? rest.substr(1, bracket - 1) : rest.substr(0, colon);
  if (address.host.empty() || address.host.size() > kHostBytesMost) return no_endpoint(text, "the host is missing");
  if (bracket > 0 && colon != bracket + 1 && bracket + 1 != rest.size())
    return no_endpoint(text, "no port follows the bracket");
  if (colon == std::string_view::npos) return address;
  const std::string_view port = rest.substr(colon + 1);
  const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool whole = problem == std::errc() && end == port.data() + port.size();
  if (!whole || address.port < 1 || address.port > kPortMost)
    return no_endpoint(text, "the port is no number up to 65535");
  return address;
}

}  // namespace

Result<std::vector<UpstreamAddress>> parse_etcd_endpoints(std::string_view text) {
  std::vector<UpstreamAddress> all;
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    TRY_ASSIGN(const UpstreamAddress address, parse_endpoint(rest.substr(0, comma)));
    if (std::find(all.begin(), all.end(), address) != all.end())
      return no_endpoint(rest.substr(0, comma), "it is named twice");
    all.push_back(address);
    if (all.size() > kEndpointsMost) return no_endpoint(rest.substr(0, comma), "more than 16 are not taken");
    if (comma == std::string_view::npos) return all;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace loralei
