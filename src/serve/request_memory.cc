// SPDX-License-Identifier: Apache-2.0
#include "serve/request_memory.h"

#include <string>

#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kTokenBytes = sizeof(TokenId);
constexpr int64_t kChoiceBytes = 4 * kKiB;  // decoder, stop strings and calls here, a sequence in the engine
// A prompt's token with its log-probability: in the engine, and as it is answered.
constexpr int64_t kEchoTokenBytes = sizeof(std::optional<TokenLogprobs>) + sizeof(WireLogprob) + 2 * 32;
constexpr int64_t kEchoAlternativeBytes = sizeof(TokenLogprob) + sizeof(WireAlternative);

}  // namespace

Error no_memory(const ByteBudget& budget, int64_t bytes, std::string_view what) {
  const int64_t most = budget.most_bytes();
  const std::string needs = std::string(what) + " takes about " + format_bytes(bytes) + " of memory, and ";
  if (bytes > most) {
    return too_large(needs + "requests can have " + format_bytes(most) +
                     " here. Send less at a time, or start the server with more --request-memory.");
  }
  return {ErrorCode::kOverloaded, needs + "other requests have too much of the " + format_bytes(most) +
                                      " that there are for them now; try again in a moment."};
}

std::optional<ApiError> take_memory(ByteShare& share, const ByteBudget& budget, int64_t bytes, std::string_view what) {
  if (share.grow_to(bytes)) return std::nullopt;
  return to_api_error(no_memory(budget, bytes, what));
}

int64_t body_cost_bytes(int64_t body_bytes) { return body_bytes + json_parse_bytes_of_length(body_bytes); }

int64_t generation_bytes(const GenerationPlan& plan) {
  int64_t tokens = 0, echo = 0;
  for (const auto& prompt : plan.prompts) tokens += static_cast<int64_t>(prompt.size());
  for (const std::string& text : plan.echo_texts) echo += static_cast<int64_t>(text.size());
  const int64_t choices = plan.submit.choices;
  const auto prompts = static_cast<int64_t>(plan.prompts.size());
  // The plan's, the engine's, and one for every sequence.
  int64_t bytes = tokens * kTokenBytes * (2 + choices) + echo * (1 + choices) + prompts * choices * kChoiceBytes;
  if (plan.submit.prompt_logprobs) {
    const int64_t top = std::max(0, plan.submit.sampling.logprobs);
    bytes += tokens * (kEchoTokenBytes + top * kEchoAlternativeBytes) * (1 + choices);
  }
  return bytes;
}

int64_t embedding_bytes(const std::vector<std::vector<TokenId>>& inputs) {
  int64_t bytes = 0;
  for (const auto& input : inputs) bytes += static_cast<int64_t>(input.size()) * kTokenBytes * 3 + kChoiceBytes;
  return bytes;
}

int64_t logprob_bytes(const WireLogprob& token) {
  return static_cast<int64_t>(2 * sizeof(WireLogprob) + token.top.capacity() * sizeof(WireAlternative) + 32);
}

}  // namespace loralei
