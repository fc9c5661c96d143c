// SPDX-License-Identifier: Apache-2.0
#include "serve/request_app.h"

#include <algorithm>

#include "base/printable.h"
#include "wire/requests.h"

namespace loralei {
namespace {

constexpr const char* kAppHeader = "x-app-id";

}  // namespace

Parsed<std::string> parse_app_header(const HttpHead& request) {
  const auto named = [](const auto& header) { return equals_ignoring_case(header.first, kAppHeader); };
  const auto count = std::count_if(request.headers.begin(), request.headers.end(), named);
  if (count == 0) return std::string();
  if (count > 1) return api_error_of_status(400, "The header X-App-Id comes more than once; send one.");
  const std::string_view id = request.header(kAppHeader);
  if (id.empty() || id.size() > kAppIdBytesMost || !is_printable(id, kAppIdBytesMost)) {
    return api_error_of_status(400, "The header X-App-Id is '" + printable(id) + "'; send an id of at most " +
                                        std::to_string(kAppIdBytesMost) + " bytes, or leave it out.");
  }
  return std::string(id);
}

Parsed<std::string> app_of(const std::string& header, const std::string& field) {
  if (header.empty() || field.empty() || header == field) return header.empty() ? field : header;
  ApiError error = api_error_of_status(
      400, "'app_id' is '" + field + "', but the header X-App-Id is '" + header + "'; send one of them.");
  error.param = "app_id";
  return error;
}

}  // namespace loralei
