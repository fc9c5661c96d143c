// SPDX-License-Identifier: Apache-2.0
#include "serve/embedding.h"

#include <algorithm>
#include <cmath>

#include "serve/request_slo.h"

namespace loralei {
namespace {

constexpr size_t kInputsAtOnce = 4;  // whose answer is made whole, with its length in the head

void normalise(std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  if (!(sum > 0)) return;
  const double scale = 1.0 / std::sqrt(sum);
  for (float& value : values) value = static_cast<float>(value * scale);
}

}  // namespace

EmbeddingJob::EmbeddingJob(ServeContext context, std::shared_ptr<Reply> reply, EmbeddingPlan plan)
    : context_(context),
      reply_(std::move(reply)),
      plan_(std::move(plan)),
      window_(context_, plan_.inputs.size()),
      vectors_(plan_.inputs.size()),
      open_(plan_.inputs.size()) {
  record_.id = reply_->request_id();
  record_.adapter = plan_.model.label;
  record_.adapters = plan_.model.entries.size();
  record_.kind = "embedding";
  record_.generates = false;
  record_.choices = static_cast<int>(plan_.inputs.size());
  for (const auto& input : plan_.inputs) record_.prompt_tokens += static_cast<int64_t>(input.size());
}

void EmbeddingJob::start() {
  reply_->writer().on_closed([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->cancel();
  });
  std::lock_guard lock(mutex_);
  advance();
}

void EmbeddingJob::on_tick(int64_t) {
  std::lock_guard lock(mutex_);
  advance();
}

void EmbeddingJob::advance() {
  if (closed_) return;
  const Status status = window_.advance(shared_from_this(), [&](size_t input) {
    Submit submit = plan_.submit;
    submit.prompt = plan_.inputs[input];
    submit.slo = slo_left(submit.slo, context_.clock.now_ns() - plan_.arrived_ns);
    return submit;
  });
  if (!status.ok()) fail(status.error());
}

void EmbeddingJob::cancel() {
  std::lock_guard lock(mutex_);
  if (!closed_) close("abort");
}

void EmbeddingJob::on_event(TokenEvent event) {
  std::lock_guard lock(mutex_);
  const auto input = window_.part_of(event.id);
  if (closed_ || !input || event.end == EndReason::kNone) return;
  if (event.end == EndReason::kError) return fail(event.error);
  if (event.end == EndReason::kCancelled)
    return fail({ErrorCode::kUnavailable, "The server stopped before the request was finished."});
  if (!record_.admitted) record_.queue_s = window_.queue_s(*input, event, plan_.arrived_ns);
  record_.admitted = true;
  record_.cached_tokens += event.cached_tokens;
  if (record_.version.empty()) record_.version = event.adapter_version;
  if (!std::all_of(event.embedding.begin(), event.embedding.end(), [](float value) { return std::isfinite(value); })) {
    return fail({ErrorCode::kInternal,
                 "An embedding holds values that are not numbers: the model's or the adapter's weights are damaged, or "
                 "too large for this input."});
  }
  ByteShare& memory = reply_->memory();
  if (!memory.grow_to(memory.bytes() + static_cast<int64_t>(event.embedding.size() * sizeof(float)))) {
    return fail({ErrorCode::kOverloaded,
                 "The server has no memory for all of these embeddings now; send fewer inputs at a time, or try again "
                 "in a moment."});
  }
  std::vector<float>& vector = vectors_[*input];
  vector = std::move(event.embedding);
  normalise(vector);
  window_.ended();
  if (--open_ > 0) return advance();
  reply_->settle(record_);
  auto pieces = embedding_response_pieces(plan_.head, std::move(vectors_), plan_.base64, record_.prompt_tokens);
  if (plan_.inputs.size() > kInputsAtOnce)
    reply_->json_pieces(200, std::move(pieces), nullptr);
  else
    reply_->json(200, whole_response(*pieces));
  close("stop");
}

void EmbeddingJob::fail(const Error& error) {
  if (closed_) return;
  reply_->settle(record_);
  reply_->error(to_api_error(with_names(error, plan_.model)));
  close("error");
}

void EmbeddingJob::close(const char* end) {
  closed_ = true;
  window_.close();
  reply_->settle(record_);
  record_.end = end;
  record_.total_s = static_cast<double>(context_.clock.now_ns() - plan_.arrived_ns) * 1e-9;
  context_.metrics.request_done(record_);
  log_request(context_.log, record_);
}

}  // namespace loralei
