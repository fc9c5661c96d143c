// SPDX-License-Identifier: Apache-2.0
// EmbeddingJob: one /v1/embeddings request: submits the inputs, a window at a time,
// normalises what comes back, answers when all are there.
//
// Thread: start() on a text thread, events on the dispatcher's, cancel() on any; a mutex
// makes them one at a time.
// Ownership: shared by the dispatcher until its last input ended.
// Invariants: vectors are in the order of the inputs and have length 1 (a zero
// vector stays zero).
// Failure: answered to the client.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/context.h"
#include "serve/reply.h"
#include "serve/resolve.h"
#include "serve/submit_window.h"
#include "wire/responses.h"

namespace loralei {

struct EmbeddingPlan {
  ResponseHead head;
  ResolvedModel model;
  std::vector<std::vector<TokenId>> inputs;
  Submit submit;  // id and prompt are filled per input
  bool base64 = false;
  int64_t arrived_ns = 0;
};

class EmbeddingJob final : public EventSink, public std::enable_shared_from_this<EmbeddingJob> {
 public:
  EmbeddingJob(ServeContext context, std::shared_ptr<Reply> reply, EmbeddingPlan plan);
  void start();
  void cancel();
  void on_event(TokenEvent event) override;
  void on_tick(int64_t now_ns) override;
  const std::string& request_id() const override { return reply_->request_id(); }

 private:
  void advance();
  void fail(const Error& error);
  void close(const char* end);

  const ServeContext context_;
  const std::shared_ptr<Reply> reply_;
  EmbeddingPlan plan_;
  std::mutex mutex_;
  SubmitWindow window_;
  std::vector<std::vector<float>> vectors_;
  size_t open_ = 0;
  bool closed_ = false;
  RequestRecord record_;
};

}  // namespace loralei
