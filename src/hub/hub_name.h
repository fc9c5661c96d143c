// SPDX-License-Identifier: Apache-2.0
// HubName: what users write for a model or an adapter that lies on a hub:
//   ORG/NAME   ORG/NAME@REVISION   ORG/NAME:Q4_K_M   ORG/NAME@REVISION:Q4_K_M
// each with "hf://" before it, or without. Behind the colon stands a GGUF file's format,
// or its name.
//
// Thread: pure functions. Ownership: values.
// Invariants: a repository has exactly one '/', and parts that may be names of folders:
// no "..", no "--", which the cache's folders use.
// Failure: a sentence for what begins with hf:// and is no name. Anything else that is
// none is a path.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

struct HubName {
  std::string repository;         // "ORG/NAME"
  std::string revision = "main";  // a branch, a tag or a commit
  std::string file;               // "Q4_K_M", "name.gguf"; empty: what there is

  std::string text() const;  // as it is written, without hf://
  friend bool operator==(const HubName&, const HubName&) = default;
};

// Nothing: a path.
Result<std::optional<HubName>> parse_hub_name(std::string_view text);
// 40 letters of hex: what revisions are names of.
bool is_commit(std::string_view text);

}  // namespace loralei
