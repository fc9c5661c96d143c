// SPDX-License-Identifier: Apache-2.0
// Any body as a form: what is told does not depend on how it is cut, and every part that
// began has ended where the form is well. The first byte says where it is cut.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "wire/multipart.h"

namespace {

using namespace loralei;

class Told final : public MultipartListener {
 public:
  Status on_part(const MultipartPart& part) override {
    CHECK(!open_);
    open_ = true;
    text += '[' + part.name + '|' + part.filename + '|';
    return {};
  }
  Status on_data(std::string_view bytes) override {
    CHECK(open_ && !bytes.empty());
    text += bytes;
    return {};
  }
  Status on_part_end() override {
    CHECK(open_);
    open_ = false;
    text += ']';
    return {};
  }
  bool open() const { return open_; }
  std::string text;

 private:
  bool open_ = false;
};

struct Outcome {
  std::string text, error;
  bool operator==(const Outcome&) const = default;
};

Outcome read(std::string_view body, size_t piece) {
  Told told;
  MultipartParser parser("XX", told);
  Status status;
  for (size_t at = 0; at < body.size() && status.ok(); at += piece) status = parser.feed(body.substr(at, piece));
  if (status.ok()) status = parser.finish();
  if (status.ok()) CHECK(!told.open());
  return {told.text, status.ok() ? "" : status.error().message};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 64 * 1024) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  const Outcome whole = read(body, body.size()), cut = read(body, 1 + data[0]);
  // Where it is wrong, how much of the last part was told depends on the cut.
  CHECK(whole.error.empty() == cut.error.empty());
  if (whole.error.empty()) CHECK(whole == cut);
  if (const auto boundary = MultipartParser::boundary_of(body); boundary.ok())
    CHECK(!boundary->empty() && boundary->size() <= 70);
  return 0;
}
