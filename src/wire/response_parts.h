// SPDX-License-Identifier: Apache-2.0
// Parts that answers and chunks have in common. Private to wire/.
// Thread: pure functions. Ownership: borrow everything. Failure: none.
#pragma once

#include <optional>
#include <vector>

#include "wire/json_out.h"
#include "wire/responses.h"

namespace loralei {

void put_head(JsonOut& out, const ResponseHead& head, const char* object);  // begins the object
void put_usage(JsonOut& out, const Usage& usage);
void put_finish(JsonOut& out, FinishReason reason, const StopReason& stop);

// Log-probabilities of a choice are arrays with an entry for every token: one in chats,
// four in completions.
enum class LogprobsForm : unsigned char { kChat, kCompletion };
int logprob_arrays(LogprobsForm form);
void begin_logprob_array(JsonOut& out, LogprobsForm form, int array);
void put_logprob_entry(JsonOut& out, LogprobsForm form, int array, const WireLogprob& token);
void end_logprob_array(JsonOut& out, LogprobsForm form, int array);
// All of them, or null.
void put_logprobs(JsonOut& out, LogprobsForm form, const std::optional<std::vector<WireLogprob>>& logprobs);

// Step by step into one writer, whose text is taken when it is long enough.
class StepwisePieces : public ResponsePieces {
 public:
  bool next(std::string& out) final {
    while (!done_ && out_.text().size() < kResponsePieceBytes) done_ = !step(out_);
    out += out_.take();
    return !done_;
  }

 private:
  virtual bool step(JsonOut& out) = 0;  // false: that was the last
  JsonOut out_;
  bool done_ = false;
};

}  // namespace loralei
