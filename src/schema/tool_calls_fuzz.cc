// SPDX-License-Identifier: Apache-2.0
// A response's text, cut at places that the first bytes choose: the events must be those
// of the uncut text.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "schema/tool_calls.h"

namespace {

using loralei::ToolCallEvent;

void append(std::vector<ToolCallEvent>& all, std::vector<ToolCallEvent> more, loralei::ToolCallForm form) {
  for (ToolCallEvent& event : more) {
    // Looked at before joining: what stands around a marker that was taken out
    // may spell another.
    if (form == loralei::ToolCallForm::kHermes && event.kind == ToolCallEvent::Kind::kContent) {
      CHECK(event.text.find("<tool_call>") == std::string::npos);
    }
    const bool joins = !all.empty() && all.back().kind == event.kind && all.back().index == event.index &&
                       (event.kind == ToolCallEvent::Kind::kContent || event.kind == ToolCallEvent::Kind::kArguments);
    if (joins)
      all.back().text += event.text;
    else
      all.push_back(std::move(event));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  if (size < 4) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 4, size - 4);
  const ToolCallForm form = static_cast<ToolCallForm>(data[0] % 3);
  ToolCallParser whole(form);
  std::vector<ToolCallEvent> expected;
  append(expected, whole.push(text), form);
  append(expected, whole.finish(), form);
  ToolCallParser cut(form);
  std::vector<ToolCallEvent> events;
  uint32_t random = data[1] | data[2] << 8 | data[3] << 16;
  for (size_t at = 0; at < text.size();) {
    random = random * 1664525 + 1013904223;
    const size_t piece = 1 + (random >> 16) % 7;
    append(events, cut.push(text.substr(at, piece)), form);
    at += piece;
  }
  append(events, cut.finish(), form);
  CHECK(events.size() == expected.size());
  for (size_t i = 0; i < events.size(); ++i) {
    CHECK(events[i].kind == expected[i].kind && events[i].index == expected[i].index &&
          events[i].text == expected[i].text);
  }
  return 0;
}
