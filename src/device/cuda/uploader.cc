// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/uploader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>

#include "device/cuda/cuda_device.h"
#include "sys/cpu.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int kChunks = 4;  // of the staging: one is filled while others are copied
constexpr int64_t kChunkAlign = 256;
constexpr int64_t kPieceBytes = int64_t{128} << 10;  // of a chunk, gathered by one thread: some 10 us
constexpr uint64_t kLast = 1;                        // tag of an upload's last copy

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// Bytes [begin, begin + bytes) of the target.
void gather(const Upload& upload, int64_t begin, int64_t bytes, std::byte* to) {
  const int64_t end = begin + bytes;
  int64_t at = begin;
  auto part = std::partition_point(upload.parts.begin(), upload.parts.end(),
                                   [begin](const UploadPart& each) { return each.at + each.bytes <= begin; });
  for (; part != upload.parts.end() && part->at < end; ++part) {
    const int64_t first = std::max(at, part->at), last = std::min(end, part->at + part->bytes);
    std::memset(to + (at - begin), 0, static_cast<size_t>(first - at));
    std::memcpy(to + (first - begin), static_cast<const std::byte*>(part->from) + (first - part->at),
                static_cast<size_t>(last - first));
    at = last;
  }
  std::memset(to + (at - begin), 0, static_cast<size_t>(end - at));
}

}  // namespace

Result<std::unique_ptr<Uploader>> Uploader::create(const Options& options) {
  CHECK(options.staging_bytes >= kChunks * kChunkAlign);
  std::unique_ptr<Uploader> made(new Uploader());
  made->chunk_bytes_ = options.staging_bytes / kChunks / kChunkAlign * kChunkAlign;
  TRY_ASSIGN(made->staging_, PinnedBuffer::allocate(kChunks * made->chunk_bytes_));
  TRY_ASSIGN(made->copies_,
             CopyEngine::create({.bytes_in_flight_max = made->staging_.size_bytes(), .copies_in_flight_max = kChunks}));
  made->gatherers_ = std::make_unique<ThreadPool>(std::clamp(options.gather_threads, 1, usable_cpus()));
  made->thread_ = std::thread([raw = made.get(), device = options.device] { raw->run(device); });
  return made;
}

Uploader::~Uploader() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  started_.notify_one();
  thread_.join();
}

void Uploader::start(Upload&& upload) {
  CHECK(upload.bytes > 0);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(upload));
  }
  started_.notify_one();
}

void Uploader::poll(std::vector<UploadEnd>& ended) {
  const std::lock_guard lock(mutex_);
  std::move(ended_.begin(), ended_.end(), std::back_inserter(ended));
  ended_.clear();
}

void Uploader::wait(std::vector<UploadEnd>& ended) {
  {
    std::unique_lock lock(mutex_);
    ended_changed_.wait(lock, [this] { return !ended_.empty(); });
  }
  poll(ended);
}

void Uploader::on_end(std::function<void(const UploadEnd&)> call) {
  const std::lock_guard lock(mutex_);
  on_end_ = std::move(call);
}

void Uploader::run(int device) {
  name_this_thread("uploads");
  usable_ = set_cuda_device(device);
  for (;;) {
    std::optional<Upload> next;
    {
      std::unique_lock lock(mutex_);
      if (going_.empty()) started_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (!queue_.empty() && !stopping_) {
        next = std::move(queue_.front());
        queue_.pop_front();
      } else if (going_.empty()) {
        return;
      }
    }
    if (next) {
      begin(*std::move(next));
    } else if (const Status settled = settle(); !settled.ok()) {
      settle_all(settled.error());
    }
  }
}

void Uploader::begin(Upload&& upload) {
  going_.push_back({std::move(upload), now_ns()});
  const Status sent = send(going_.back().upload);
  if (!sent.ok()) settle_all(sent.error());
}

Status Uploader::send(const Upload& upload) {
  TRY(usable_);
  for (int64_t at = 0; at < upload.bytes; at += chunk_bytes_) {
    const int64_t bytes = std::min(chunk_bytes_, upload.bytes - at);
    while (copies_.copies_in_flight() == kChunks) TRY(settle());
    std::byte* const chunk = staging_.data() + static_cast<int64_t>(next_chunk_) * chunk_bytes_;
    gatherers_->parallel_for(bytes, kPieceBytes, [&](int64_t begin, int64_t end, int) {
      gather(upload, at + begin, end - begin, chunk + begin);
    });
    const uint64_t tag = at + bytes == upload.bytes ? kLast : 0;
    TRY_ASSIGN(const bool queued, copies_.submit({upload.to + at, chunk, bytes, CopyDirection::kToDevice, tag}));
    CHECK(queued);
    next_chunk_ = (next_chunk_ + 1) % kChunks;
  }
  return {};
}

// Waits for the oldest copy.
Status Uploader::settle() {
  TRY(copies_.wait_oldest());
  uint64_t tags[kChunks];
  TRY_ASSIGN(const size_t done, copies_.poll(tags));
  for (size_t i = 0; i < done; ++i) {
    if (tags[i] == kLast) report({});
  }
  return {};
}

// Something was refused: what was complete before it ends well, the rest with `error`.
void Uploader::settle_all(const Error& error) {
  while (copies_.copies_in_flight() > 0 && settle().ok()) {
  }
  while (!going_.empty()) report(error);
}

// The oldest has ended.
void Uploader::report(Status status) {
  const Going& first = going_.front();
  UploadEnd end{first.upload.id, first.upload.subject, std::move(status), now_ns() - first.begin_ns};
  going_.pop_front();
  const std::lock_guard lock(mutex_);
  ended_.push_back(std::move(end));
  ended_changed_.notify_all();
  if (on_end_) on_end_(ended_.back());
}

}  // namespace loralei
