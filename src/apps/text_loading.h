// SPDX-License-Identifier: Apache-2.0
// The text side of a base model: its tokenizer and chat template, from the folder or GGUF file the weights come from.
// One thread, at start.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "formats/base_model.h"
#include "serve/text_model.h"

namespace loralei {

// chat_template: "" = the model's own, else a built-in name (chatml, llama3, ...) or the path of a Jinja file.
Result<std::shared_ptr<const TextModel>> load_text_model(const BaseModelFile& file, const std::string& chat_template,
                                                         const std::string& model_name);

}  // namespace loralei
