// SPDX-License-Identifier: Apache-2.0
// Which files of a repository are fetched: those that this program reads and no others.
// Weights as safetensors or as one GGUF file (in all its parts), configs, tokenizers and
// chat templates; never pickles, never code.
//
// Thread: pure functions. Ownership: values.
// Invariant: what is chosen is of the list, and small files stand before weights, so that
// a folder with all weights lacks nothing.
// Failure: a sentence that says what there is instead, or what to write.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "hub/hub_name.h"

namespace loralei {

enum class HubKind : unsigned char { kModel, kAdapter, kAny };

struct HubChoice {
  std::vector<std::string> files;
  std::string gguf;  // the file to open, of several parts the first; empty: the folder is opened
  bool adapter = false;
};

Result<HubChoice> choose_hub_files(const std::vector<std::string>& all, const HubName& name, HubKind kind);

}  // namespace loralei
