// SPDX-License-Identifier: Apache-2.0
#include "device/emulated/link_uploader.h"

#include <span>
#include <utility>

#include "sys/threads.h"

namespace loralei {

Result<std::unique_ptr<LinkUploader>> LinkUploader::create(std::unique_ptr<Link> link, const Clock& clock) {
  std::unique_ptr<LinkUploader> made(new LinkUploader(std::move(link), clock));
  TRY_ASSIGN(made->thread_, start_thread([raw = made.get()] { raw->run(); }));
  return made;
}

LinkUploader::~LinkUploader() {
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void LinkUploader::start(LinkUpload&& upload) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(upload), clock_.now_ns()});
  started_.notify_one();
}

void LinkUploader::poll(std::vector<LinkUploadEnd>& ended) {
  const std::lock_guard lock(mutex_);
  for (LinkUploadEnd& end : ended_) ended.push_back(std::move(end));
  ended_.clear();
}

void LinkUploader::on_end(std::function<void(const LinkUploadEnd&)> call) {
  const std::lock_guard lock(mutex_);
  on_end_ = std::move(call);
}

void LinkUploader::run() {
  name_this_thread("link");
  favour_this_thread();  // copies come when the link says, though all cores compute
  const std::stop_token stop = stop_.get_token();
  std::unique_lock lock(mutex_);
  while (started_.wait(lock, stop, [&] { return !queue_.empty(); }) && !stop.stop_requested()) {
    Waiting next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const int64_t begin_ns = clock_.now_ns();
    Status status = send(next);
    if (!status.ok() && next.upload.layers_there) next.upload.layers_there->fail(status.error());
    next.upload.keeps.reset();
    lock.lock();
    if (stop.stop_requested()) return;
    ended_.push_back({next.upload.id, std::move(status), clock_.now_ns() - begin_ns});
    if (on_end_) on_end_(ended_.back());
  }
}

Status LinkUploader::send(const Waiting& waiting) {
  const LinkUpload& upload = waiting.upload;
  std::span<const LinkPart> left = upload.parts;
  for (const int32_t count : upload.layer_parts) {
    const auto parts = left.first(static_cast<size_t>(count));
    left = left.subspan(parts.size());
    if (!parts.empty()) TRY(link_->copy(parts, waiting.asked_ns, stop_.get_token()));
    if (upload.layers_there) upload.layers_there->advance();
  }
  return {};
}

}  // namespace loralei
