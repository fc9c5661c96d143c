// SPDX-License-Identifier: Apache-2.0
#include "serve/request_slo.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/printable.h"

namespace loralei {
namespace {

constexpr const char* kTtftHeader = "x-llm-d-slo-ttft-ms";
constexpr const char* kTpotHeader = "x-llm-d-slo-tpot-ms";

ApiError no_time(const char* name, const std::string& what) {
  return api_error_of_status(400, "The header " + std::string(name) + " " + what +
                                      "; send milliseconds as a number above 0 and at most " +
                                      std::to_string(static_cast<int64_t>(kSloMostMs)) + ", or leave it out.");
}

// 0: it is not there.
Parsed<int64_t> time_of(const HttpHead& request, const char* name) {
  const auto named = [&](const auto& header) { return equals_ignoring_case(header.first, name); };
  const auto count = std::count_if(request.headers.begin(), request.headers.end(), named);
  if (count == 0) return int64_t{0};
  if (count > 1) return no_time(name, "comes more than once");
  const std::string_view text = request.header(name);
  double ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size() || !(ms > 0 && ms <= kSloMostMs))
    return no_time(name, "is '" + printable(text) + "'");
  return std::max<int64_t>(1, static_cast<int64_t>(ms * 1e6));
}

}  // namespace

Parsed<RequestSlo> parse_request_slo(const HttpHead& request) {
  Parsed<int64_t> ttft = time_of(request, kTtftHeader);
  if (!ttft.ok()) return ttft.error();
  Parsed<int64_t> tpot = time_of(request, kTpotHeader);
  if (!tpot.ok()) return tpot.error();
  return RequestSlo{.ttft_ns = *ttft, .tpot_ns = *tpot};
}

RequestSlo slo_left(const RequestSlo& slo, int64_t elapsed_ns) {
  if (slo.ttft_ns <= 0) return slo;
  return {.ttft_ns = std::max<int64_t>(1, slo.ttft_ns - elapsed_ns), .tpot_ns = slo.tpot_ns};
}

}  // namespace loralei
