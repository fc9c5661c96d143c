// SPDX-License-Identifier: Apache-2.0
// Errors on the wire: the one table from ErrorCode to HTTP status and OpenAI error type,
// and the body that carries them.
//
// Thread: pure functions and plain values.
// Ownership: values.
// Invariants: every ErrorCode has a row; a body is always
// {"error":{"message","type","param","code"}}, valid JSON whatever bytes
// the message holds.
// Failure: none.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/result.h"

namespace loralei {

struct ErrorRow {
  int status;
  const char* type;  // OpenAI's name of the kind
  const char* code;  // OpenAI's machine-readable code; nullptr = null
};
const ErrorRow& error_row(ErrorCode code);

// What a client is told. param and code: empty = null.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;
  std::string code;
  bool code_is_status = false;  // vLLM's form, for its adapter routes: code is the HTTP status as a number
};

ApiError to_api_error(const Error& error, std::string param = {});
// The error that http/ raises itself (413, 431 ...), given its status.
ApiError api_error_of_status(int status, std::string message);
// vLLM's error bodies for its load and unload routes: InvalidUserInput, NotFoundError,
// InternalServerError by status.
ApiError vllm_error(int status, std::string message);
std::string error_body(const ApiError& error);

// A parsed request, or what is wrong with it.
template <typename T>
class [[nodiscard]] Parsed {
 public:
  Parsed(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Parsed(ApiError error) : error_(std::move(error)) {}  // NOLINT: implicit by design
  bool ok() const { return value_.has_value(); }
  T& value() {
    CHECK(ok());
    return *value_;
  }
  T* operator->() { return &value(); }
  T& operator*() { return value(); }
  const ApiError& error() const {
    CHECK(!ok());
    return error_;
  }

 private:
  std::optional<T> value_;
  ApiError error_;
};

}  // namespace loralei
