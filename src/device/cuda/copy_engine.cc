// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/copy_engine.h"

#include "device/cuda/cuda_memory.h"

namespace loralei {

Result<CopyEngine> CopyEngine::create(const Options& options) {
  CHECK(options.bytes_in_flight_max > 0 && options.copies_in_flight_max > 0);
  CopyEngine engine;
  engine.options_ = options;
  TRY_ASSIGN(engine.stream_, CudaStream::create());
  engine.slots_.resize(static_cast<size_t>(options.copies_in_flight_max));
  for (Slot& slot : engine.slots_) {
    TRY_ASSIGN(slot.event, CudaEvent::create());
  }
  return engine;
}

Result<bool> CopyEngine::submit(const CopyRequest& request, const CudaEvent* after) {
  if (count_ == slots_.size()) return false;
  if (count_ > 0 && bytes_in_flight_ + request.bytes > options_.bytes_in_flight_max) return false;
  if (after != nullptr) TRY(stream_.wait_for(*after));
  if (request.direction == CopyDirection::kToDevice) {
    TRY(copy_to_device(request.to, request.from, request.bytes, stream_));
  } else {
    TRY(copy_to_host(request.to, request.from, request.bytes, stream_));
  }
  if (request.word != nullptr) TRY(stream_.write(*request.word, request.word_value));
  last_ = (first_ + count_) % slots_.size();
  Slot& slot = slots_[last_];
  TRY(stream_.record(slot.event));
  slot.bytes = request.bytes;
  slot.tag = request.tag;
  bytes_in_flight_ += request.bytes;
  ++count_;
  any_ = true;
  return true;
}

Result<size_t> CopyEngine::poll(std::span<uint64_t> done) {
  size_t reported = 0;
  while (count_ > 0 && reported < done.size()) {
    const Slot& slot = slots_[first_];
    TRY_ASSIGN(const bool finished, slot.event.done());
    if (!finished) break;
    done[reported++] = slot.tag;
    bytes_in_flight_ -= slot.bytes;
    first_ = (first_ + 1) % slots_.size();
    --count_;
  }
  return reported;
}

Status CopyEngine::order_after_last(CudaStream& stream) {
  if (!any_) return {};
  return stream.wait_for(slots_[last_].event);
}

Status CopyEngine::wait_oldest() {
  if (count_ == 0) return {};
  return slots_[first_].event.synchronize();
}

Status CopyEngine::wait_all() { return stream_.synchronize(); }

}  // namespace loralei
