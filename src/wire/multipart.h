// SPDX-License-Identifier: Apache-2.0
// MultipartParser: the parts of a multipart/form-data body (RFC 7578, RFC 2046), as its
// pieces come.
//
// Thread: one at a time. Ownership: borrows the listener.
// Invariants: of the body no more is held than a part's header and a delimiter; what is
// told does not depend on how the body is cut. Each part that begins ends, unless the
// body is wrong.
// Failure: kInvalidArgument with a sentence; then nothing more is told. An error of the
// listener ends it, too.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

struct MultipartPart {
  std::string name;      // of the form's field
  std::string filename;  // as the client says it: never a path to be used
  bool is_file = false;  // it has a filename, be it empty
};

class MultipartListener {
 public:
  virtual ~MultipartListener() = default;
  virtual Status on_part(const MultipartPart& part) = 0;
  virtual Status on_data(std::string_view bytes) = 0;  // never empty
  virtual Status on_part_end() = 0;
};

class MultipartParser {
 public:
  static constexpr size_t kPartsMost = 64;
  static constexpr size_t kPartHeaderBytes = 8 * 1024;

  // What Content-Type says; an error where it is not multipart/form-data with a boundary.
  static Result<std::string> boundary_of(std::string_view content_type);

  MultipartParser(const std::string& boundary, MultipartListener& listener);
  Status feed(std::string_view bytes);
  Status finish();  // behind the last piece: an error where the body has no end

 private:
  enum class State : unsigned char { kPreamble, kData, kBehindDelimiter, kHeader, kEpilogue };
  Result<bool> step();  // false: more bytes are needed
  Result<bool> take_data();
  Result<bool> take_delimiter_end();
  Result<bool> take_header();
  Status fail(std::string sentence);

  MultipartListener& listener_;
  const std::string delimiter_;  // with the line end before it
  State state_ = State::kPreamble;
  std::string held_;
  bool behind_header_ = false;
  size_t parts_ = 0;
  Status failed_;
};

}  // namespace loralei
