// SPDX-License-Identifier: Apache-2.0
// Any text as adapter_config.json: refused or read; then its patterns against the names
// of a small model.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/limits.h"
#include "formats/peft_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool strict : {true, false}) {
    const auto config = loralei::parse_peft_config(text, "fuzz", strict);
    if (!config.ok()) continue;
    CHECK(config->rank >= 1 && config->rank <= loralei::kMaxLoraRank);
    auto matcher = loralei::PeftMatcher::create(*config, "fuzz");
    if (!matcher.ok()) continue;
    for (const char* key :
         {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "model.embed_tokens", "lm_head"}) {
      const auto targeted = matcher->targets(key, true);
      const auto rank = matcher->rank(key);
      const auto scaling = matcher->scaling(key);
      matcher->saves(key);
      if (!targeted.ok() || !rank.ok() || !scaling.ok()) break;
      CHECK(*rank >= 1);
    }
    matcher->unused_targets();
  }
  return 0;
}
