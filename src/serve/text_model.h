// SPDX-License-Identifier: Apache-2.0
// TextModel: what one model, or one adapter with a tokenizer or template of its own,
// needs to turn requests into token ids. TextModels: the base's and the adapters',
// found by source.
//
// Thread: TextModel is immutable but for the trie it builds once; TextModels is
// thread-safe (file work happens outside its lock, on the caller's thread).
// Ownership: shared by pointer, so that a running request keeps the tokenizer it
// began with.
// Invariants: adapters whose files say the same share one TextModel, the base's where
// they say what its own do; it lives as long as an entry or a request has it. Who loads
// a source puts there what it had read before the load: that is what the source goes
// with, and other files are an error. An adapter's is granted before it is read, and as
// long as it is there; where there is no room those that were not used for longest are
// dropped, and read again when they are.
// Failure: too_large and overloaded, with numbers; unavailable where the files are others
// by now; sentences of text/, cancelled where
// the watch of the work has stopped it; a chat request to a model without template
// is invalid_argument.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_budget.h"
#include "base/result.h"
#include "schema/json_schema.h"
#include "schema/reasoning.h"
#include "store/catalogue.h"
#include "sys/file.h"
#include "template/chat_template.h"
#include "text/tokenizer.h"
#include "wire/requests.h"

namespace loralei {

// What encoding a prompt is held to.
struct EncodeWithin {
  Work* work = nullptr;            // what the request spends on its text; may be null
  int64_t max_tokens = INT64_MAX;  // ids beyond it say that there are more, not how many
};

// What the server was told about chats; adapters' texts have the base's.
struct ChatSettings {
  bool detect_reasoning = true;            // its form follows from the chat template
  std::optional<ReasoningForm> reasoning;  // else this one; none: answers are content as they are
  std::string template_kwargs;             // JSON object text; a request's own count more; empty = none
};

class TextModel {
 public:
  // `chat_template`: overrides the tokenizer's own ones (--chat-template); may be null.
  static Result<std::shared_ptr<TextModel>> make(Tokenizer::Ptr tokenizer,
                                                 std::shared_ptr<const ChatTemplate> chat_template,
                                                 std::string model_name, ChatSettings settings = {});

  // The parts of one; the templates may be null. Files and flags become one
  // through make().
  TextModel(Tokenizer::Ptr tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
            std::shared_ptr<const ChatTemplate> tool_template, std::string model_name, ChatSettings settings);
  // The same with the tokenizer of an adapter, made from this one's, and with its
  // templates where it brings others. `take`: the memory of those.
  Result<std::shared_ptr<TextModel>> with_tokenizer(Tokenizer::Ptr tokenizer, const TakeMemory& take = {}) const;
  // Until it goes.
  void keep(ByteShare memory) { memory_ = std::move(memory); }

  // Equal for two models of one base exactly where they make the same ids
  // of every request.
  const std::string& signature() const { return signature_; }
  // Of the signature; not 0.
  uint64_t number() const { return number_; }
  const Tokenizer::Ptr& tokenizer() const { return tokenizer_; }
  // With tools the one named tool_use where there is one, as transformers chooses.
  const std::shared_ptr<const ChatTemplate>& chat_template(bool with_tools) const {
    return with_tools && tool_template_ ? tool_template_ : template_;
  }
  bool has_template() const { return template_ != nullptr; }
  // In which answers to its chats have their reasoning, if they have any.
  std::optional<ReasoningForm> reasoning(bool with_tools) const;
  // What grammars need of the vocabulary; built at the first call. vocab_size and end_ids
  // are the model's and always the same.
  // Its memory is of `memory` and stays with the model.
  Result<std::shared_ptr<const VocabTrie>> vocab_trie(int64_t vocab_size, const std::vector<TokenId>& end_ids,
                                                      const std::shared_ptr<ByteBudget>& memory) const;

  Result<std::vector<TokenId>> encode_text(const std::string& text, bool add_special_tokens,
                                           const EncodeWithin& within = {}) const;
  Result<std::vector<TokenId>> encode_prompt(const PromptInput& prompt, bool add_special_tokens,
                                             const EncodeWithin& within = {}) const;
  // What the template would not show: documents are an error, as they are one in
  // render_chat(); names of fields that it does not read are returned, those of messages
  // as "messages[].x".
  Status check_documents(const WirePrompt& prompt, bool with_tools) const;
  std::vector<std::string> unread_fields(const WirePrompt& prompt, bool with_tools) const;
  // with_tools = false hides the tools from the template (tool_choice none).
  Result<std::string> render_chat(const WirePrompt& prompt, bool with_tools, int64_t unix_time_s,
                                  Work* work = nullptr) const;
  // Of what render_chat() made.
  Result<std::vector<TokenId>> encode_rendered(const std::string& text, bool add_special_tokens,
                                               const EncodeWithin& within = {}) const;
  // Both.
  Result<std::vector<TokenId>> encode_chat(const WirePrompt& prompt, bool with_tools, int64_t unix_time_s,
                                           bool add_special_tokens = false, const EncodeWithin& within = {}) const;

 private:
  Tokenizer::Ptr tokenizer_;
  ByteShare memory_;  // of an adapter's: what it does not share with the base's
  mutable std::mutex trie_mutex_;
  mutable ByteShare trie_memory_;
  mutable std::shared_ptr<const VocabTrie> trie_;
  std::shared_ptr<const ChatTemplate> template_, tool_template_;
  std::string model_name_;
  ChatSettings settings_;
  std::string signature_;
  uint64_t number_ = 0;
};

class TextModels {
 public:
  // `files`: what adapters are read from; borrowed. `memory`: of what is read and made of
  // it; null: all there is.
  TextModels(std::shared_ptr<const TextModel> base, const FileSystem& files, std::shared_ptr<ByteBudget> memory = {})
      : base_(std::move(base)), files_(files), memory_(std::move(memory)) {}
  const std::shared_ptr<const TextModel>& base() const { return base_; }
  Result<std::shared_ptr<const TextModel>> for_adapter(const CatalogueEntry& entry);
  // What for_adapter() finds in the files, read now; and to let it have that
  // for this entry.
  Result<std::shared_ptr<const TextModel>> read(const CatalogueEntry& entry);
  void put(const CatalogueEntry& entry, std::shared_ptr<const TextModel> model);
  void forget(AdapterSourceId source);

 private:
  struct Entry {
    std::shared_ptr<const TextModel> model;  // null: dropped for its room
    uint64_t last_use = 0;
    uint64_t loaded_with = 0;  // TextModel::number() of what was put(), or 0
  };
  Status take(ByteShare& share, int64_t more_bytes);
  bool drop_oldest();  // that nobody uses now; false: there is none

  const std::shared_ptr<const TextModel> base_;
  const FileSystem& files_;
  const std::shared_ptr<ByteBudget> memory_;
  std::mutex mutex_;
  uint64_t uses_ = 0;
  std::map<AdapterSourceId, Entry> adapters_;
  std::map<std::string, std::weak_ptr<const TextModel>> shared_;  // by signature
};

}  // namespace loralei
