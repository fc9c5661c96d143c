// SPDX-License-Identifier: Apache-2.0
#include "serve/text_model.h"

#include <algorithm>
#include <span>

#include "base/fast_hash.h"
#include "serve/request_memory.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

// Null where the tokenizer has none.
const std::string* tool_template_of(const Tokenizer& tokenizer) {
  const auto found = tokenizer.named_templates().find("tool_use");
  return found == tokenizer.named_templates().end() ? nullptr : &found->second;
}

constexpr int64_t kTemplateFactor = 128;  // of its tree, by the bytes of its source
// Of a VocabTrie and what it is made of: an entry of every table for each token, nodes
// and text for each byte.
constexpr int64_t kTrieTokenBytes = 96;
constexpr int64_t kTrieByteBytes = 16;

int64_t template_bytes(const Tokenizer& tokenizer) {
  size_t bytes = tokenizer.chat_template() ? tokenizer.chat_template()->size() : 0;
  if (const std::string* tools = tool_template_of(tokenizer)) bytes += tools->size();
  return kTemplateFactor * static_cast<int64_t>(bytes);
}

// JSON texts of objects, or nothing, as one object: of a key that both have, the value of
// `more` counts, as the last.
std::string joined(const std::string& object, const std::string& more) {
  if (object.empty() || more.empty()) return object + more;
  const auto inside = [](const std::string& text) {
    const size_t open = text.find('{') + 1;
    return text.substr(open, text.rfind('}') - open);
  };
  const std::string first = inside(object), second = inside(more);
  const auto empty = [](const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; };
  return "{" + first + (empty(first) || empty(second) ? "" : ",") + second + "}";
}

// transformers shows templates the tokenizer's additional special tokens as a list
// beside the named ones.
std::string additional_tokens_kwargs(const std::vector<std::string>& tokens) {
  JsonOut out;
  out.begin_object().key("additional_special_tokens").begin_array();
  for (const std::string& token : tokens) out.string(token);
  out.end_array().end_object();
  return out.take();
}

// Templates call it by one of two names.
std::string reasoning_kwargs(const WirePrompt& prompt) {
  const bool none = prompt.reasoning_effort == "none";
  if (!prompt.enable_thinking && prompt.reasoning_effort.empty()) return "";
  JsonOut out;
  out.begin_object();
  if (prompt.enable_thinking || none) {
    const bool thinks = prompt.enable_thinking.value_or(false);
    out.key("enable_thinking").boolean(thinks).key("thinking").boolean(thinks);
  }
  if (!prompt.reasoning_effort.empty()) out.key("reasoning_effort").string(prompt.reasoning_effort);
  out.end_object();
  return out.take();
}

}  // namespace

TextModel::TextModel(Tokenizer::Ptr tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
                     std::shared_ptr<const ChatTemplate> tool_template, std::string model_name, ChatSettings settings)
    : tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      tool_template_(std::move(tool_template)),
      model_name_(std::move(model_name)),
      settings_(std::move(settings)),
      signature_(tokenizer_->signature()) {
  for (const auto& one : {template_, tool_template_}) {
    if (one) signature_ += std::to_string(one->source().size()) + ':' + one->source();
    signature_ += ' ';
  }
  const auto bytes = std::as_bytes(std::span(signature_));
  number_ = std::max<uint64_t>(1, fast_hash(bytes.data(), bytes.size(), 0));
}

Result<std::shared_ptr<TextModel>> TextModel::make(Tokenizer::Ptr tokenizer,
                                                   std::shared_ptr<const ChatTemplate> chat_template,
                                                   std::string model_name, ChatSettings settings) {
  std::shared_ptr<const ChatTemplate> tool_template;
  if (!chat_template) {
    if (tokenizer->chat_template()) {
      TRY_ASSIGN(chat_template, ChatTemplate::parse(*tokenizer->chat_template()));
    }
    if (const std::string* source = tool_template_of(*tokenizer)) {
      TRY_ASSIGN(tool_template, ChatTemplate::parse(*source));
    }
  }
  return std::make_shared<TextModel>(std::move(tokenizer), std::move(chat_template), std::move(tool_template),
                                     std::move(model_name), std::move(settings));
}

Result<std::shared_ptr<TextModel>> TextModel::with_tokenizer(Tokenizer::Ptr tokenizer, const TakeMemory& take) const {
  // Templates of the adapter's own count; otherwise those of the base, also when they
  // came from the command line.
  const std::string* tools = tool_template_of(*tokenizer);
  const std::string* known = tool_template_of(*tokenizer_);
  const bool same_tools = tools && known ? *tools == *known : tools == known;
  if (!same_tools || tokenizer->chat_template() != tokenizer_->chat_template()) {
    if (take) TRY(take(template_bytes(*tokenizer)));
    return make(std::move(tokenizer), nullptr, model_name_, settings_);
  }
  return std::make_shared<TextModel>(std::move(tokenizer), template_, tool_template_, model_name_, settings_);
}

std::optional<ReasoningForm> TextModel::reasoning(bool with_tools) const {
  if (!settings_.detect_reasoning) return settings_.reasoning;
  const auto& chosen = chat_template(with_tools);
  return chosen ? detect_reasoning_form(chosen->source()) : std::nullopt;
}

Result<std::shared_ptr<const VocabTrie>> TextModel::vocab_trie(int64_t vocab_size, const std::vector<TokenId>& end_ids,
                                                               const std::shared_ptr<ByteBudget>& memory) const {
  std::lock_guard lock(trie_mutex_);
  if (trie_) return trie_;
  const int known = tokenizer_->vocab_size();
  vocab_size = std::max<int64_t>(vocab_size, known);
  ByteShare share(memory);
  int64_t text_bytes = 0;
  for (TokenId id = 0; id < known; ++id) text_bytes += static_cast<int64_t>(tokenizer_->token_piece(id).size());
  const int64_t bytes = vocab_size * kTrieTokenBytes + text_bytes * kTrieByteBytes;
  if (memory && !share.grow_to(bytes))
    return no_memory(*memory, bytes, "The table for structured output of this tokenizer");
  const auto ends = [&](TokenId id) {
    const auto own = tokenizer_->end_ids();
    return std::find(own.begin(), own.end(), id) != own.end() ||
           std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end();
  };
  std::vector<GrammarToken> tokens;
  for (TokenId id = 0; id < known; ++id) {
    if (ends(id))
      tokens.push_back({id, "", GrammarToken::Kind::kEnd});
    else if (tokenizer_->is_hole(id))
      continue;
    else if (tokenizer_->is_special(id))
      tokens.push_back({id, std::string(tokenizer_->token_piece(id)), GrammarToken::Kind::kSpecial});
    else
      tokens.push_back({id, std::string(tokenizer_->token_bytes(id)), GrammarToken::Kind::kText});
  }
  TRY_ASSIGN(trie_, VocabTrie::build(std::move(tokens), vocab_size));
  trie_memory_ = std::move(share);
  return trie_;
}

Result<std::vector<TokenId>> TextModel::encode_text(const std::string& text, bool add_special_tokens,
                                                    const EncodeWithin& within) const {
  return tokenizer_->encode(text,
                            {.add_special = add_special_tokens, .max_tokens = within.max_tokens, .work = within.work});
}

Result<std::vector<TokenId>> TextModel::encode_prompt(const PromptInput& prompt, bool add_special_tokens,
                                                      const EncodeWithin& within) const {
  if (!prompt.is_tokens) {
    TRY_ASSIGN(auto ids, encode_text(prompt.text, add_special_tokens, within));
    // An empty text of a tokenizer without BOS: there would be nothing to compute from.
    if (ids.empty() && tokenizer_->bos()) ids.push_back(*tokenizer_->bos());
    if (ids.empty()) return invalid_argument("The prompt is empty.");
    return ids;
  }
  constexpr int64_t kIdWork = 64;
  for (const TokenId id : prompt.tokens) {
    if (within.work != nullptr && !within.work->spend(kIdWork)) return within.work->error();
    if (tokenizer_->is_hole(id)) {
      return invalid_argument("The prompt holds the token id " + std::to_string(id) +
                              ", which is not in the model's vocabulary of " +
                              std::to_string(tokenizer_->vocab_size()) + " tokens.");
    }
  }
  return prompt.tokens;
}

Status TextModel::check_documents(const WirePrompt& prompt, bool with_tools) const {
  const auto& chosen = chat_template(with_tools && !prompt.tools.empty());
  const bool lost = chosen && !prompt.documents.empty() && prompt.documents != "[]" && !chosen->shows_documents();
  if (!lost) return {};
  return invalid_argument(
      "This model's chat template shows no documents to the model; leave 'documents' out and put their text into a "
      "message.");
}

std::vector<std::string> TextModel::unread_fields(const WirePrompt& prompt, bool with_tools) const {
  std::vector<std::string> unread;
  const auto& chosen = chat_template(with_tools && !prompt.tools.empty());
  for (const std::string& name : prompt.message_fields) {
    if (!chosen || !chosen->reads_field(name)) unread.push_back("messages[]." + name);
  }
  const auto reads = [&](const char* name) { return chosen && chosen->source().find(name) != std::string::npos; };
  if (prompt.enable_thinking && !reads("thinking")) unread.emplace_back("enable_thinking");
  return unread;
}

Result<std::string> TextModel::render_chat(const WirePrompt& prompt, bool with_tools, int64_t unix_time_s,
                                           Work* work) const {
  with_tools = with_tools && !prompt.tools.empty();
  const auto& chosen = chat_template(with_tools);
  if (!chosen) return no_chat_template(model_name_);
  TRY(check_documents(prompt, with_tools));
  ChatPrompt chat;
  chat.messages.reserve(prompt.messages.size());
  for (const WireMessage& message : prompt.messages) {
    ChatMessage out;
    out.role = message.role;
    if (message.has_content) out.content = message.content;
    out.null_content = message.null_content;
    out.more = message.more;
    out.name = message.name;
    out.tool_call_id = message.tool_call_id;
    for (const ToolCall& call : message.tool_calls) out.tool_calls.push_back({call.id, call.name, call.arguments});
    chat.messages.push_back(std::move(out));
  }
  if (with_tools) {
    chat.tools = "[";
    for (const ToolSpec& tool : prompt.tools) chat.tools += (chat.tools.size() > 1 ? "," : "") + tool.json;
    chat.tools += "]";
  }
  chat.documents = prompt.documents;
  const auto& additional = tokenizer_->settings().additional_special_tokens;
  if (!additional.empty() && chosen->source().find("additional_special_tokens") != std::string::npos)
    chat.kwargs = additional_tokens_kwargs(additional);
  for (const std::string& kwargs : {settings_.template_kwargs, reasoning_kwargs(prompt), prompt.template_kwargs})
    chat.kwargs = joined(chat.kwargs, kwargs);
  chat.add_generation_prompt = prompt.add_generation_prompt;
  chat.continue_final_message = prompt.continue_final_message;
  chat.special_tokens.assign(tokenizer_->special_tokens().begin(), tokenizer_->special_tokens().end());
  chat.unix_time_s = unix_time_s;
  return chosen->render(chat, work);
}

Result<std::vector<TokenId>> TextModel::encode_chat(const WirePrompt& prompt, bool with_tools, int64_t unix_time_s,
                                                    bool add_special_tokens, const EncodeWithin& within) const {
  TRY_ASSIGN(const std::string text, render_chat(prompt, with_tools, unix_time_s, within.work));
  return encode_rendered(text, add_special_tokens, within);
}

Result<std::vector<TokenId>> TextModel::encode_rendered(const std::string& text, bool add_special_tokens,
                                                        const EncodeWithin& within) const {
  // The template writes the special tokens; a second BOS would be one too many.
  const auto bos = tokenizer_->special_tokens().find("bos_token");
  if (bos != tokenizer_->special_tokens().end() && begins_with_bos(text, bos->second)) add_special_tokens = false;
  TRY_ASSIGN(auto ids, encode_text(text, add_special_tokens, within));
  if (ids.empty()) return invalid_argument("The chat template made an empty prompt of these messages.");
  return ids;
}

Result<std::shared_ptr<const TextModel>> TextModels::for_adapter(const CatalogueEntry& entry) {
  {
    std::lock_guard lock(mutex_);
    const auto known = adapters_.find(entry.source);
    if (known != adapters_.end() && known->second.model != nullptr) {
      known->second.last_use = ++uses_;
      return known->second.model;
    }
  }
  TRY_ASSIGN(auto model, read(entry));
  const std::lock_guard lock(mutex_);
  Entry& known = adapters_[entry.source];
  if (known.loaded_with != 0 && known.loaded_with != model->number()) {
    return Error{ErrorCode::kUnavailable, "the tokenizer or chat template of adapter '" + entry.name +
                                              "' has changed since it was loaded; load it in place"};
  }
  if (known.model == nullptr) known.model = std::move(model);  // or another was faster
  known.last_use = ++uses_;
  return known.model;
}

Result<std::shared_ptr<const TextModel>> TextModels::read(const CatalogueEntry& entry) {
  if (files_.kind(entry.path) == PathKind::kFile) return base_;  // a GGUF adapter has no folder of its own
  ByteShare share(memory_);
  const TakeMemory take = [&](int64_t more_bytes) { return this->take(share, more_bytes); };
  auto tokenizer = base_->tokenizer()->with_added_tokens(files_, entry.path, take);
  if (!tokenizer.ok())
    return std::move(tokenizer).error().with_context("the tokenizer files of adapter '" + entry.name + "'");
  if (*tokenizer == base_->tokenizer()) return base_;
  const int64_t own_bytes = (*tokenizer)->own_bytes();
  share.shrink_to(std::min(share.bytes(), own_bytes));
  auto made = base_->with_tokenizer(std::move(*tokenizer), take);
  if (!made.ok()) return std::move(made).error().with_context("the chat template of adapter '" + entry.name + "'");
  if ((*made)->signature() == base_->signature()) return base_;  // the folder only repeats what the base's says
  std::lock_guard lock(mutex_);
  std::weak_ptr<const TextModel>& known = shared_[(*made)->signature()];
  if (auto model = known.lock()) return model;
  (*made)->keep(std::move(share));
  std::shared_ptr<const TextModel> model = std::move(*made);
  known = model;
  std::erase_if(shared_, [](const auto& one) { return one.second.expired(); });
  return model;
}

Status TextModels::take(ByteShare& share, int64_t more_bytes) {
  if (memory_ == nullptr) return {};
  const int64_t bytes = share.bytes() + more_bytes;
  while (!share.grow_to(bytes)) {
    const std::lock_guard lock(mutex_);
    if (bytes > memory_->most_bytes() || !drop_oldest()) return no_memory(*memory_, bytes, "Reading them");
  }
  return {};
}

bool TextModels::drop_oldest() {
  std::map<const TextModel*, long> holders;  // of the entries alone
  for (const auto& [source, entry] : adapters_) ++holders[entry.model.get()];
  const TextModel* oldest = nullptr;
  uint64_t oldest_use = UINT64_MAX;
  for (const auto& [source, entry] : adapters_) {
    if (entry.model == nullptr || entry.model == base_ || entry.model.use_count() > holders[entry.model.get()])
      continue;
    if (entry.last_use < oldest_use) oldest = entry.model.get(), oldest_use = entry.last_use;
  }
  if (oldest == nullptr) return false;
  for (auto& [source, entry] : adapters_)
    if (entry.model.get() == oldest) entry.model = nullptr;
  return true;
}

void TextModels::put(const CatalogueEntry& entry, std::shared_ptr<const TextModel> model) {
  const std::lock_guard lock(mutex_);
  const uint64_t number = model->number();
  adapters_[entry.source] = {std::move(model), ++uses_, number};
}

void TextModels::forget(AdapterSourceId source) {
  const std::lock_guard lock(mutex_);
  adapters_.erase(source);
}

}  // namespace loralei
