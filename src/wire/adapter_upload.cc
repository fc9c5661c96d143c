// SPDX-License-Identifier: Apache-2.0
#include "wire/adapter_upload.h"

#include <utility>

#include "wire/json_in.h"
#include "wire/json_out.h"

namespace loralei {

Result<std::optional<LoadLoraRequest>> parse_upload_answer(std::string_view body) {
  constexpr std::string_view kStore = "store:";
  constexpr size_t kPathBytes = 4096;
  const auto unusable = [](const std::string& why) {
    return invalid_argument("This is no answer to an upload: " + why);
  };
  auto json = parse_json_object(body);
  if (!json.ok()) return unusable(json.error().message);
  JsonReader reader(*json);
  LoadLoraRequest load;
  load.path = reader.required_string("path", kPathBytes);
  if (!reader.failed() && !load.path.starts_with(kStore)) reader.fail("path", "'path' does not begin with \"store:\".");
  const std::optional<std::string> name = reader.string("name", kMaxNameBytes);
  if (name && name->empty()) reader.fail("name", "'name' is empty.");
  load.load_inplace = reader.boolean("load_inplace").value_or(false);
  load.pinned = reader.boolean("pinned").value_or(false);
  if (reader.failed()) return unusable(reader.error().message);
  if (!name) return std::optional<LoadLoraRequest>();
  load.name = *name;
  return std::optional<LoadLoraRequest>(std::move(load));
}

std::string load_lora_body(const LoadLoraRequest& request) {
  JsonOut out;
  out.begin_object().key("lora_name").string(request.name).key("lora_path").string(request.path);
  out.key("load_inplace").boolean(request.load_inplace).key("pinned").boolean(request.pinned);
  return out.end_object().take();
}

}  // namespace loralei
