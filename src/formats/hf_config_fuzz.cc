// SPDX-License-Identifier: Apache-2.0
// Any text as config.json and generation_config.json: refused or read, and a config that
// is read is possible.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "formats/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = loralei::parse_hf_config(text, "fuzz");
  if (config.ok()) {
    CHECK(loralei::check_model_config(config->config, "fuzz").ok());
    for (const loralei::TokenId id : config->config.eos) CHECK(id >= 0 && id < config->config.vocab);
  }
  const auto generation = loralei::parse_generation_config(text, "fuzz", 1000);
  if (generation.ok()) {
    for (const loralei::TokenId id : generation->eos) CHECK(id >= 0 && id < 1000);
  }
  return 0;
}
