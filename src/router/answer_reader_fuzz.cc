// SPDX-License-Identifier: Apache-2.0
// Any body, cut anywhere: what passes is that body, and of events only whole ones before
// the end.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "router/answer_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  if (size < 2) return 0;
  const bool events = data[0] % 2 == 0;
  size_t step = data[1];
  const std::string_view body(reinterpret_cast<const char*>(data + 2), size - 2);
  AnswerReader reader(events);
  std::string passed;
  for (size_t at = 0; at < body.size();) {
    const size_t bytes = std::min(1 + step % 97, body.size() - at);
    passed += reader.take(body.substr(at, bytes));
    if (events) CHECK(passed.empty() || passed.ends_with("\n\n") || passed.ends_with("\n\r\n"));
    at += bytes;
    step = step * 31 + 7;
  }
  passed += reader.rest();
  CHECK(passed == body);
  const AnswerCounts counts = reader.counts();
  CHECK(counts.prompt_tokens >= 0 && counts.output_tokens >= 0);
  return 0;
}
