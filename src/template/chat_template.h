// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: messages and tools to prompt text, through the model's own Jinja template
// or a built-in one.
//
// Thread: immutable; render on any number of threads.
// Ownership: shared by pointer (a model's, or an adapter's own).
// Invariants: what the template sees is what transformers' apply_chat_template shows:
// messages with the fields that they have (reasoning_content, thinking or reasoning
// under the first two of these names, too), tools and documents (none when absent),
// add_generation_prompt, the special tokens that exist, and chat_template_kwargs, which
// may replace tokens but not the others. A tool call's arguments are given as a dict
// where they are a JSON object, else as the string; as strings all of them where the
// template fails on dicts (some join them to text). A message of the role developer is
// one of the role system where the template's source has no string 'developer': it would
// be dropped or refused, or have a head that the model never saw. continue_final_message
// renders the final content with a tag behind it and cuts there; an empty content leaves
// the message's head, with the white space that the template ends it with (transformers
// strips that where the template trims contents).
// Failure: invalid_argument with the template's line or the JSON that is wrong;
// the text of raise_exception is in the message; cancelled where the watch of the
// work has stopped it.
// Source: transformers 5, utils/chat_template_utils.py (also for continue_final_message).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "template/jinja.h"

namespace loralei {

struct ChatToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text of an object
};

struct ChatMessage {
  std::string role;
  std::optional<std::string> content;
  bool null_content = false;  // without a content: it is none, and not undefined
  std::string name;           // empty: absent
  std::string tool_call_id;   // of a tool's answer; empty: absent
  std::vector<ChatToolCall> tool_calls;
  std::string more;  // JSON text of an object: fields of other names, shown as they are; empty: none
};

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  std::string tools;      // JSON text of an array of tools; empty: none
  std::string documents;  // JSON text of an array; empty: none
  std::string kwargs;     // JSON text of an object, chat_template_kwargs; empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message is left open; needs add_generation_prompt off
  std::vector<std::pair<std::string, std::string>> special_tokens;  // "bos_token", "eos_token" ... with their text
  int64_t unix_time_s = 0;                                          // what strftime_now shows, in UTC
};

class ChatTemplate {
 public:
  static Result<std::shared_ptr<const ChatTemplate>> parse(std::string source);
  // chatml, llama2, llama3, mistral, alpaca, vicuna, zephyr; not_found, with these
  // names, for any other.
  static Result<std::shared_ptr<const ChatTemplate>> builtin(std::string_view name);
  static std::vector<std::string_view> builtin_names();

  // `work`: what the request spends on its text; may be null.
  Result<std::string> render(const ChatPrompt& prompt, Work* work = nullptr) const;
  // What is alive at once while prompts of so many bytes of text are rendered: the output
  // and the template's values, on top of a copy of the prompt.
  static int64_t max_render_bytes(int64_t text_bytes);

  const std::string& source() const { return source_; }
  // Without these the model never gets to see the tools, or documents, of a request.
  bool shows_tools() const { return template_->mentions("tools"); }
  bool shows_documents() const { return template_->mentions("documents"); }
  // False: no message's field of this name is ever seen.
  bool reads_field(std::string_view name) const;

 private:
  ChatTemplate(std::string source, std::shared_ptr<const JinjaTemplate> parsed);
  std::string source_;
  std::shared_ptr<const JinjaTemplate> template_;
  bool knows_developers_ = false;
};

// The refusal for a chat request to a model that has no template.
Error no_chat_template(std::string_view model);

// True when the template has written the beginning-of-sequence token itself: the prompt
// must then be encoded without adding special tokens, or the model would see two.
inline bool begins_with_bos(std::string_view prompt, std::string_view bos) {
  return !bos.empty() && prompt.substr(0, bos.size()) == bos;
}

}  // namespace loralei
