// SPDX-License-Identifier: Apache-2.0
// The text side of a base model: its tokenizer and chat template, from the folder or GGUF
// file the weights come from. One thread, at start.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/base_model.h"
#include "serve/options.h"
#include "serve/text_model.h"

namespace loralei {

// A built-in one by its name (chatml, llama3, ...) or the path of a Jinja file; null for
// "", the model's own.
Result<std::shared_ptr<const ChatTemplate>> load_chat_template(const std::string& name_or_path);
// --reasoning-parser (auto, none or a form's name) and --default-chat-template-kwargs
// (JSON text of an object, or "").
Result<ChatSettings> read_chat_settings(const std::string& reasoning_parser, const std::string& template_kwargs);
Result<std::shared_ptr<const TextModel>> load_text_model(const BaseModelFile& file,
                                                         std::shared_ptr<const ChatTemplate> chat_template,
                                                         const std::string& model_name, ChatSettings settings = {});
// A user's message by the model's chat template, behind a system message unless that is
// empty; as it is where the model has no template.
Result<std::vector<TokenId>> encode_message(const TextModel& text, const std::string& message,
                                            const std::string& system = {});
// What requests get that do not say how tokens are chosen.
SamplingDefaults sampling_defaults(const BaseModelFile& file);

}  // namespace loralei
