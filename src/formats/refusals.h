// SPDX-License-Identifier: Apache-2.0
// All that keeps a model from being served, where open_base_model() tells the first thing
// it meets: for people who look at a file before they load it.
//
// Any thread; reads files, none of them whole but the config.
#pragma once

#include <string>
#include <vector>

#include "sys/file.h"

namespace loralei {

struct ModelRefusals {
  std::string architecture;          // as the file says; empty: it says none
  std::vector<std::string> missing;  // one sentence each; empty: nothing was found
};

// `path`: a Hugging Face directory or a .gguf file that open_base_model() refused.
ModelRefusals model_refusals(const FileSystem& files, const std::string& path);

}  // namespace loralei
