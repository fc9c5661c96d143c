// SPDX-License-Identifier: Apache-2.0
// An adapter's tokenizer files and template as its folder holds them, read below a root
// as the server reads them. The input is a list of files: a byte for the name, two for
// the length, the contents.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "sys/memory_file_system.h"
#include "sys/rooted_file_system.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace {

using namespace loralei;

constexpr std::array kNames = {"tokenizer_config.json", "tokenizer.json", "added_tokens.json", "chat_template.jinja",
                               "special_tokens_map.json"};
constexpr const char* kTokenizer =
    R"({"added_tokens":[{"id":3,"content":"<s>","special":true}],"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},)"
    R"("merges":["a b"]}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 64 * 1024) return 0;
  MemoryFileSystem disk;
  while (size >= 3) {
    const size_t name = data[0] % kNames.size(), wanted = data[1] | data[2] << 8, bytes = std::min(wanted, size - 3);
    disk.put(std::string("/adapters/a/") + kNames[name], std::string(reinterpret_cast<const char*>(data + 3), bytes));
    data += 3 + bytes;
    size -= 3 + bytes;
  }
  const RootedFileSystem files(disk, {"/adapters"});
  static const Tokenizer::Ptr base = Tokenizer::from_json(kTokenizer).value();
  if (const auto config = read_tokenizer_config(files, "/adapters/a"); !config.ok())
    CHECK(!config.error().message.empty());
  const auto tokenizer = base->with_added_tokens(files, "/adapters/a");
  if (!tokenizer.ok()) {
    CHECK(!tokenizer.error().message.empty());
    return 0;
  }
  const auto ids = (*tokenizer)->encode("ab <s> ba", {.add_special = true, .parse_special = true});
  if (!ids.ok()) return 0;
  for (const TokenId id : *ids) CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
  return 0;
}
