// SPDX-License-Identifier: Apache-2.0
// Answers of the HTTP API: native structs to JSON text and SSE frames.
//
// Thread: pure functions and plain values.
// Ownership: values, but for tokens' bytes; the returned text is complete.
// Invariants: the text is valid JSON and UTF-8 whatever the strings hold (broken
// sequences become U+FFFD; logprobs carry the raw bytes beside). A stream of chat chunks
// begins with the role, ends with a finish reason, then the usage chunk if asked for,
// then kSseDone; a chunk has a piece of one tool call at most, since clients read the
// first alone (llama-index) or lose arguments of two with one index (openai-python).
// Failure: none.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "wire/requests.h"

namespace loralei {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt
  int64_t reasoning_tokens = 0;  // of the completion
  int64_t borrowed_tokens = 0;   // of the prompt, beside those cached
};

struct ResponseHead {
  std::string id;       // "chatcmpl-...", "cmpl-..."
  int64_t created = 0;  // unix seconds
  std::string model;    // the name the client asked for
  std::string system_fingerprint;
};

struct WireAlternative {
  WireAlternative() = default;
  WireAlternative(std::string_view bytes, float logprob) : bytes(bytes), logprob(logprob) {}
  template <std::same_as<std::string> Text>
  WireAlternative(Text&& bytes, float logprob) = delete;  // it would be gone
  std::string_view bytes;  // of the token, maybe not valid UTF-8; the tokenizer's, which outlives it
  float logprob = 0;
};
struct WireLogprob {
  WireAlternative chosen;
  bool has_logprob = true;  // false: the first token of an echoed prompt has none
  std::vector<WireAlternative> top;
  int64_t text_offset = 0;  // completions: where its text begins in the choice's whole text, in characters
};

enum class FinishReason : unsigned char { kNone, kStop, kLength, kToolCalls, kAbort };
const char* finish_reason_name(FinishReason reason);  // nullptr for kNone
// Which of the request's own ends it was: none, a stop string, one of stop_token_ids.
// Said with the finish reason.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

// A choice as a whole.
struct AnswerChoice {
  int index = 0;
  std::string content;
  std::string reasoning_content;
  std::vector<ToolCall> tool_calls;  // with some, an empty content becomes null
  FinishReason finish = FinishReason::kStop;
  std::optional<std::vector<WireLogprob>> logprobs;
  StopReason stop_reason{};
};

// A whole answer as JSON text, made piece by piece as its reader takes it, and given
// up choice by choice.
class ResponsePieces {
 public:
  virtual ~ResponsePieces() = default;
  // Appends the next part, of about kResponsePieceBytes and at least one text or token.
  // False: it was the last.
  virtual bool next(std::string& out) = 0;
};
inline constexpr size_t kResponsePieceBytes = 8 * 1024;
std::string whole_response(ResponsePieces& pieces);

std::unique_ptr<ResponsePieces> chat_response_pieces(ResponseHead head, std::vector<AnswerChoice> choices, Usage usage);
std::string chat_response(ResponseHead head, std::vector<AnswerChoice> choices, const Usage& usage);

struct ToolCallDelta {
  int index = 0;
  std::string id;  // with the name, in the first delta of a call only
  std::string name;
  std::string arguments;  // a piece; in the first delta what there is of them
};
struct ChatDelta {
  int index = 0;
  bool role = false;  // the first delta of a choice
  std::string reasoning_content;
  std::string content;
  std::optional<ToolCallDelta> tool_call;
  FinishReason finish = FinishReason::kNone;
  std::optional<std::vector<WireLogprob>> logprobs;
  StopReason stop_reason{};
};
// What chunks say about usage: nothing, null (the usage chunk comes at the end), or
// the figures so far.
struct ChunkUsage {
  bool present = false;
  std::optional<Usage> usage;
};
std::string chat_chunk(const ResponseHead& head, const ChatDelta& delta, const ChunkUsage& usage = {});
std::string chat_usage_chunk(const ResponseHead& head, const Usage& usage);

struct CompletionChoice {
  int index = 0;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::optional<std::vector<WireLogprob>> logprobs;
  StopReason stop_reason{};
};
std::unique_ptr<ResponsePieces> completion_response_pieces(ResponseHead head, std::vector<CompletionChoice> choices,
                                                           Usage usage);
std::string completion_response(ResponseHead head, std::vector<CompletionChoice> choices, const Usage& usage);
std::string completion_chunk(const ResponseHead& head, const CompletionChoice& choice, const ChunkUsage& usage = {});
std::string completion_usage_chunk(const ResponseHead& head, const Usage& usage);

std::unique_ptr<ResponsePieces> embedding_response_pieces(ResponseHead head, std::vector<std::vector<float>> embeddings,
                                                          bool base64, int64_t prompt_tokens);
std::string embedding_response(ResponseHead head, std::vector<std::vector<float>> embeddings, bool base64,
                               int64_t prompt_tokens);
std::string tokenize_response(const std::vector<TokenId>& tokens, int64_t max_model_len,
                              const std::vector<std::string>* token_strs);
std::string detokenize_response(std::string_view text);

struct ModelCard {
  std::string id;
  int64_t created = 0;
  std::string root;    // path of the files
  std::string parent;  // the base's id; empty for the base itself
  int64_t max_model_len = 0;
};
std::string model_card(const ModelCard& card);
std::string model_list(const std::vector<ModelCard>& cards);

// One row of GET /v1/adapters.
struct AdapterVersionRow {
  int64_t number = 0;
  std::string digest;  // that its files must give
  std::string path;
  std::string state = "registered";  // AdapterRow's
  bool pinned = false;
  std::string error;  // why its last load failed
};
struct AdapterRow {
  std::string name;
  std::string path;
  std::string source;                // command_line, directory, http
  std::string state = "registered";  // loading, ready, failed ...
  std::string tier = "disk";         // memory, device
  int64_t bytes = 0;
  int rank = 0;
  std::string version;               // digest of its files, once known
  int64_t number = 0;                // of the version; 0: it has none
  int64_t uses = 0;                  // requests begun with it
  double recent_uses = 0;            // of the last minutes
  std::optional<double> load_s;      // of its last load
  std::optional<double> keep_score;  // whoever has the lowest leaves first
  std::string left;                  // why it left memory
  int running = 0;                   // requests holding it now
  int waiting = 0;                   // requests queued for it
  bool pinned = false;
  std::vector<std::pair<std::string, int>> modules;  // what it changes: names, and on how many of these
  std::optional<double> change_norm;                 // of all its low-rank products; none while it is not in memory
  std::vector<std::string> notes;                    // what was applied, and what the load report says
  std::string error;                                 // why the last load failed
  std::vector<AdapterVersionRow> versions;           // that are kept, the oldest first
};
std::string adapter_row(const AdapterRow& row);
std::string adapter_list(const std::vector<AdapterRow>& rows);

// vLLM's plain texts.
std::string lora_loaded_text(std::string_view name);
std::string lora_unloaded_text(std::string_view name);

// --- server-sent events
std::string sse_event(std::string_view json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSsePing = ": ping\n\n";

}  // namespace loralei
