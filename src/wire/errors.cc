// SPDX-License-Identifier: Apache-2.0
#include "wire/errors.h"

#include "base/printable.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

constexpr const char* kInvalid = "invalid_request_error";

// In the order of ErrorCode.
constexpr ErrorRow kRows[] = {
    {400, kInvalid, nullptr},                          // kInvalidArgument
    {401, "authentication_error", "invalid_api_key"},  // kUnauthenticated
    {403, "permission_error", nullptr},                // kForbidden
    {404, "not_found_error", nullptr},                 // kNotFound
    {413, kInvalid, "too_large"},                      // kTooLarge
    {429, "rate_limit_error", "rate_limit_exceeded"},  // kOverloaded
    {409, kInvalid, "cancelled"},                      // kCancelled: another request undid what this one asked for
    {504, "timeout_error", "timeout"},                 // kDeadline
    {503, "unavailable_error", "unavailable"},         // kUnavailable
    {400, kInvalid, "corrupt_file"},                   // kCorrupt: of a file the request names
    {500, "server_error", "io_error"},                 // kIo
    {400, kInvalid, "unsupported"},                    // kUnsupported
    {500, "server_error", "internal_error"},           // kInternal
};
static_assert(sizeof kRows / sizeof kRows[0] == kErrorCodeCount);

}  // namespace

const ErrorRow& error_row(ErrorCode code) {
  const auto index = static_cast<size_t>(code);
  CHECK(index < static_cast<size_t>(kErrorCodeCount));
  return kRows[index];
}

ApiError to_api_error(const Error& error, std::string param) {
  const ErrorRow& row = error_row(error.code);
  return {row.status, error.message, row.type, std::move(param), row.code ? row.code : "", false};
}

ApiError api_error_of_status(int status, std::string message) {
  ApiError error{status, std::move(message), kInvalid, {}, {}, false};
  if (status == 401)
    error.type = "authentication_error";
  else if (status == 403)
    error.type = "permission_error";
  else if (status == 404)
    error.type = "not_found_error";
  else if (status == 408)
    error.type = "timeout_error";
  else if (status == 429)
    error.type = "rate_limit_error";
  else if (status == 503)
    error.type = "unavailable_error";
  else if (status >= 500)
    error.type = "server_error";
  return error;
}

ApiError vllm_error(int status, std::string message) {
  const char* type = status == 404 ? "NotFoundError" : status >= 500 ? "InternalServerError" : "InvalidUserInput";
  return {status, std::move(message), type, {}, {}, true};
}

std::string error_body(const ApiError& error) {
  JsonOut out;
  out.begin_object().key("error").begin_object();
  out.key("message").string(printable(error.message)).key("type").string(error.type);
  out.key("param").string_or_null(error.param).key("code");
  if (error.code_is_status)
    out.number(error.status);
  else
    out.string_or_null(error.code);
  out.end_object().end_object();
  return out.take();
}

}  // namespace loralei
