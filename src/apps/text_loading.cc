// SPDX-License-Identifier: Apache-2.0
#include "apps/text_loading.h"

#include <algorithm>
#include <ctime>

#include "base/limits.h"
#include "base/printable.h"
#include "sys/file.h"
#include "wire/json_in.h"

namespace loralei {

Result<std::shared_ptr<const ChatTemplate>> load_chat_template(const std::string& name_or_path) {
  if (name_or_path.empty()) return std::shared_ptr<const ChatTemplate>();
  const auto names = ChatTemplate::builtin_names();
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) return ChatTemplate::builtin(name_or_path);
  const PosixFileSystem files;
  auto source = files.read_all(name_or_path, kMaxJsonBytes);
  if (!source.ok()) {
    std::string known;
    for (const std::string_view name : names) known += (known.empty() ? "" : ", ") + std::string(name);
    return std::move(source).error().with_context("--chat-template takes the path of a Jinja file or one of " + known);
  }
  return ChatTemplate::parse(std::move(*source));
}

Result<ChatSettings> read_chat_settings(const std::string& reasoning_parser, const std::string& template_kwargs) {
  ChatSettings settings;
  settings.detect_reasoning = reasoning_parser == "auto";
  settings.reasoning = reasoning_form(reasoning_parser);
  if (!settings.detect_reasoning && reasoning_parser != "none" && !settings.reasoning) {
    std::string known = "auto, none";
    for (const std::string_view name : reasoning_form_names()) known += ", " + std::string(name);
    return invalid_argument("--reasoning-parser takes one of " + known + "; not '" + printable(reasoning_parser) +
                            "'.");
  }
  if (template_kwargs.empty()) return settings;
  auto kwargs = parse_json_object(template_kwargs);
  if (!kwargs.ok()) {
    return invalid_argument(
        "--default-chat-template-kwargs takes a JSON object, such as '{\"enable_thinking\": false}'; " +
        kwargs.error().message);
  }
  settings.template_kwargs = compact_json(*kwargs);
  return settings;
}

Result<std::shared_ptr<const TextModel>> load_text_model(const BaseModelFile& file,
                                                         std::shared_ptr<const ChatTemplate> chat_template,
                                                         const std::string& model_name, ChatSettings settings) {
  Tokenizer::Ptr tokenizer;
  if (file.vocab) {
    TRY_ASSIGN(tokenizer, Tokenizer::from_gguf(*file.vocab));
  } else {
    TRY_ASSIGN(tokenizer, Tokenizer::from_directory(file.path));
  }
  TRY_ASSIGN(auto model,
             TextModel::make(std::move(tokenizer), std::move(chat_template), model_name, std::move(settings)));
  return std::shared_ptr<const TextModel>(std::move(model));
}

Result<std::vector<TokenId>> encode_message(const TextModel& text, const std::string& message,
                                            const std::string& system) {
  if (!text.has_template()) return text.encode_text(message, true);
  WirePrompt prompt;
  const auto add = [&prompt](const char* role, const std::string& content) {
    WireMessage& one = prompt.messages.emplace_back();
    one.role = role;
    one.content = content;
    one.has_content = true;
  };
  if (!system.empty()) add("system", system);
  add("user", message);
  return text.encode_chat(prompt, false, std::time(nullptr));
}

SamplingDefaults sampling_defaults(const BaseModelFile& file) {
  const GenerationDefaults& stated = file.defaults;
  return {stated.temperature, stated.top_p, stated.min_p, stated.repetition_penalty, stated.top_k, stated.do_sample};
}

}  // namespace loralei
