// SPDX-License-Identifier: Apache-2.0
// Any bytes as a template, rendered over a fixed conversation with small limits: it must
// end, and never crash.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "template/jinja.h"
#include "template/jinja_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  const auto parsed = JinjaTemplate::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const JinjaValue call = jinja_dict({{"name", JinjaValue("f")}, {"arguments", jinja_dict({{"a", JinjaValue(1)}})}});
  const JinjaValue user = jinja_dict({{"role", JinjaValue("user")}, {"content", JinjaValue(" Grüße\n")}});
  const JinjaValue assistant = jinja_dict(
      {{"role", JinjaValue("assistant")}, {"content", JinjaValue::none()}, {"tool_calls", jinja_list({call})}});
  const JinjaValue context = jinja_dict({{"messages", jinja_list({user, assistant, user})},
                                         {"tools", jinja_list({call})},
                                         {"bos_token", JinjaValue("<s>")},
                                         {"n", JinjaValue(-7)},
                                         {"f", JinjaValue(2.5)},
                                         {"t", JinjaValue(true)},
                                         {"no", JinjaValue::none()}});
  JinjaRenderOptions options;
  options.limits.max_work = 1 << 20;
  options.limits.max_output_bytes = 1 << 16;
  options.limits.max_held_bytes = 4 << 20;
  const auto text = parsed.value()->render(context, options);
  if (text.ok()) CHECK(is_valid_utf8(text.value()));
  return 0;
}
