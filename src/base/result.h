// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value, or an Error that tells the user what to do. The only way
// operating errors travel.
//
// Thread: plain values, no sharing.
// Ownership: holds its value or its error.
// Invariant: value() is called only when ok(); a violated call is a programmer
// error and CHECKs.
// The enum is closed; wire/ maps every code to an HTTP status and an OpenAI error
// type in one table.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace loralei {

enum class ErrorCode : unsigned char {
  kInvalidArgument,
  kUnauthenticated,
  kForbidden,
  kNotFound,
  kTooLarge,
  kOverloaded,
  kCancelled,
  kDeadline,
  kUnavailable,
  kCorrupt,
  kIo,
  kUnsupported,
  kInternal,
};
inline constexpr int kErrorCodeCount = 13;

// Stable lower-case name, e.g. "invalid_argument".
const char* error_code_name(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one sentence for the user: what is wrong, where, what to do

  // Prepends context: "while reading FILE: ...".
  Error with_context(const std::string& context) && {
    message = context + ": " + message;
    return std::move(*this);
  }
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    CHECK(ok());
    return *value_;
  }
  T value() && {  // by value, so that `for (x : f().value())` holds what it walks over
    CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    CHECK(!ok());
    return error_;
  }
  Error error() && {
    CHECK(!ok());
    return std::move(error_);
  }

 private:
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    CHECK(!ok());
    return *error_;
  }
  Error error() && {
    CHECK(!ok());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};
using Status = Result<void>;

inline Error invalid_argument(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }
inline Error not_found(std::string message) { return {ErrorCode::kNotFound, std::move(message)}; }
inline Error too_large(std::string message) { return {ErrorCode::kTooLarge, std::move(message)}; }
inline Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }
inline Error unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }
inline Error io_error(std::string message) { return {ErrorCode::kIo, std::move(message)}; }
inline Error internal_error(std::string message) { return {ErrorCode::kInternal, std::move(message)}; }

}  // namespace loralei

// Returns the error of `expression` (a Result) from the enclosing function, which
// returns a Result.
#define LORALEI_CONCAT_INNER(a, b) a##b
#define LORALEI_CONCAT(a, b) LORALEI_CONCAT_INNER(a, b)
#define TRY(expression)                                                                            \
  do {                                                                                             \
    if (auto try_result_ = (expression); !try_result_.ok()) return std::move(try_result_).error(); \
  } while (false)

// TRY_ASSIGN(auto x, expression): declares or assigns x from the value, or
// returns the error.
#define TRY_ASSIGN(target, expression) TRY_ASSIGN_IMPL(LORALEI_CONCAT(try_assign_, __LINE__), target, expression)
#define TRY_ASSIGN_IMPL(temporary, target, expression)      \
  auto temporary = (expression);                            \
  if (!temporary.ok()) return std::move(temporary).error(); \
  target = std::move(temporary).value()
