// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file of calibrate-kv: refused, or steps that make a grid, and that are
// written and read back as they are. The first byte says whether the checksum is mended
// first, so that what lies behind it is reached.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "codec/kv_steps.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) {
    constexpr const char* kKey = "\"checksum\": \"";
    const size_t at = text.find(kKey);
    const std::string checksum = kv_steps_checksum(text);
    if (at != std::string::npos && !checksum.empty() && text.size() - at > 32) {
      text.replace(at + 13, checksum.size(), checksum);
    }
  }
  const auto steps = parse_kv_steps(text, "fuzzed");
  if (!steps.ok()) {
    CHECK(!steps.error().message.empty());
    return 0;
  }
  CHECK(steps->grid(DType::kF16).ok());
  const auto written = kv_steps_text(*steps);
  CHECK(written.ok());
  const auto again = parse_kv_steps(*written, "written");
  CHECK(again.ok() && *again == *steps);
  return 0;
}
