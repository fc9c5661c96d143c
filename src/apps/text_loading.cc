// SPDX-License-Identifier: Apache-2.0
#include "apps/text_loading.h"

#include <algorithm>

#include "base/limits.h"
#include "sys/file.h"

namespace loralei {
namespace {

Result<std::shared_ptr<const ChatTemplate>> load_template(const std::string& name_or_path) {
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

}  // namespace

Result<std::shared_ptr<const TextModel>> load_text_model(const BaseModelFile& file, const std::string& chat_template,
                                                         const std::string& model_name) {
  Tokenizer::Ptr tokenizer;
  if (file.vocab) {
    TRY_ASSIGN(tokenizer, Tokenizer::from_gguf(*file.vocab));
  } else {
    TRY_ASSIGN(tokenizer, Tokenizer::from_directory(file.path));
  }
  std::shared_ptr<const ChatTemplate> chosen;
  if (!chat_template.empty()) {
    TRY_ASSIGN(chosen, load_template(chat_template));
  }
  return TextModel::make(std::move(tokenizer), std::move(chosen), model_name);
}

}  // namespace loralei
