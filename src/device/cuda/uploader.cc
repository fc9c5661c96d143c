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

// What a copy's tag says: whether it is its upload's last one, and how many pieces are
// there with it.
uint64_t tag_of(bool last, int32_t pieces) { return static_cast<uint64_t>(pieces) << 1 | (last ? 1 : 0); }
bool is_last(uint64_t tag) { return (tag & 1) != 0; }
int32_t pieces_of(uint64_t tag) { return static_cast<int32_t>(tag >> 1); }

// Pieces that are there with the first `bytes` of the target.
int32_t pieces_through(const Upload& upload, int64_t bytes) {
  const auto& ends = upload.piece_ends;
  return static_cast<int32_t>(std::upper_bound(ends.begin(), ends.end(), bytes) - ends.begin());
}

void tell(const Upload& upload, int32_t pieces) {
  if (upload.arrivals == nullptr) return;
  while (upload.arrivals->there() < pieces) upload.arrivals->advance();
}

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
  CHECK(upload.piece_ends.empty() ||
        (upload.piece_ends.back() == upload.bytes && upload.arrivals != nullptr && upload.gate != nullptr &&
         upload.arrivals->total() == std::ssize(upload.piece_ends)));
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
  const int32_t none = pieces_through(upload, 0);  // of no bytes
  tell(upload, none);
  if (upload.gate != nullptr) upload.gate->there.store(static_cast<uint32_t>(none), std::memory_order_release);
  for (int64_t at = 0, end = 0; at < upload.bytes; at = end) {
    end = std::min(at + chunk_bytes_, upload.bytes);
    const auto piece = static_cast<size_t>(pieces_through(upload, at));
    if (!upload.piece_ends.empty()) end = std::min(end, upload.piece_ends[piece]);
    while (copies_.copies_in_flight() == kChunks) TRY(settle());
    TRY(send_chunk(upload, at, end - at));
    if (!upload.piece_ends.empty()) TRY(take_done());  // those who wait for pieces hear of them at once
  }
  return {};
}

Status Uploader::send_chunk(const Upload& upload, int64_t at, int64_t bytes) {
  std::byte* const chunk = staging_.data() + static_cast<int64_t>(next_chunk_) * chunk_bytes_;
  gatherers_->parallel_for(bytes, kPieceBytes, [&](int64_t begin, int64_t end, int) {
    gather(upload, at + begin, end - begin, chunk + begin);
  });
  const int32_t pieces = pieces_through(upload, at + bytes);
  CopyRequest copy{.to = upload.to + at, .from = chunk, .bytes = bytes};
  copy.tag = tag_of(at + bytes == upload.bytes, pieces);
  if (pieces > pieces_through(upload, at)) {
    copy.word = &upload.gate->there;
    copy.word_value = static_cast<uint32_t>(pieces);
  }
  TRY_ASSIGN(const bool queued, copies_.submit(copy));
  CHECK(queued);
  next_chunk_ = (next_chunk_ + 1) % kChunks;
  return {};
}

// Waits for the oldest copy.
Status Uploader::settle() {
  TRY(copies_.wait_oldest());
  return take_done();
}

Status Uploader::take_done() {
  uint64_t tags[kChunks];
  TRY_ASSIGN(const size_t done, copies_.poll(tags));
  for (size_t i = 0; i < done; ++i) {
    tell(going_.front().upload, pieces_of(tags[i]));
    if (is_last(tags[i])) report({});
  }
  return {};
}

// Something was refused: what was complete before it ends well, the rest with `error`.
void Uploader::settle_all(const Error& error) {
  while (copies_.copies_in_flight() > 0 && settle().ok()) {
  }
  (void)copies_.wait_all();  // what was put on the stream and not counted
  while (!going_.empty()) report(error);
}

// The oldest has ended.
void Uploader::report(Status status) {
  const Going& first = going_.front();
  if (!status.ok() && first.upload.arrivals != nullptr) first.upload.arrivals->fail(status.error());
  UploadEnd end{first.upload.id, first.upload.subject, std::move(status), now_ns() - first.begin_ns};
  going_.pop_front();
  const std::lock_guard lock(mutex_);
  ended_.push_back(std::move(end));
  ended_changed_.notify_all();
  if (on_end_) on_end_(ended_.back());
}

}  // namespace loralei
