// SPDX-License-Identifier: Apache-2.0
// For templates_test.py: renders what stands on each line of the input, {"template",
// "context", "unix_time_s"}, and writes {"text"} or {"error"} as a line of the output.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "template/jinja.h"
#include "template/jinja_json.h"

namespace {

using loralei::Result;
using Json = nlohmann::ordered_json;

Result<std::string> render(const Json& job) {
  TRY_ASSIGN(const auto parsed, loralei::JinjaTemplate::parse(job["template"].get<std::string>()));
  loralei::Work work;
  TRY_ASSIGN(const auto context, loralei::jinja_from_json_text(job["context"].dump(), work));
  loralei::JinjaRenderOptions options;
  options.unix_time_s = job["unix_time_s"].get<int64_t>();
  return parsed->render(context.value_or(loralei::JinjaValue()), options);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json job = Json::parse(line, nullptr, false);
    if (!job.is_object()) return 2;
    const Result<std::string> text = render(job);
    std::cout << (text.ok() ? Json{{"text", *text}} : Json{{"error", text.error().message}}).dump() << "\n";
  }
  return 0;
}
