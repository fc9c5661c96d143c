// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_stream.h"

#include "device/cuda/runtime.h"
#include "device/cuda/stream_gate.h"

namespace loralei {

CudaStream::~CudaStream() {
  if (handle_ != nullptr) cuda_runtime::destroy_stream(handle_);
}

CudaStream& CudaStream::operator=(CudaStream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Result<CudaStream> CudaStream::create() {
  CudaStream stream;
  TRY_ASSIGN(stream.handle_, cuda_runtime::create_stream());
  return stream;
}

Status CudaStream::synchronize() const { return cuda_runtime::synchronize(handle_); }
Status CudaStream::record(const CudaEvent& event) { return cuda_runtime::record(event.handle(), handle_); }
Status CudaStream::wait_for(const CudaEvent& event) { return cuda_runtime::wait(handle_, event.handle()); }

Status CudaStream::write(std::atomic<uint32_t>& word, uint32_t value) {
  return cuda_runtime::write_word(handle_, &word, value);
}
Status CudaStream::wait_for(const StreamGate& gate, uint32_t at_least) {
  return cuda_runtime::wait_for_word(handle_, &gate, at_least);
}

CudaEvent::~CudaEvent() {
  if (handle_ != nullptr) cuda_runtime::destroy_event(handle_);
}

CudaEvent& CudaEvent::operator=(CudaEvent&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Result<CudaEvent> CudaEvent::create(bool timed) {
  CudaEvent event;
  TRY_ASSIGN(event.handle_, cuda_runtime::create_event(timed));
  return event;
}

Result<bool> CudaEvent::done() const { return cuda_runtime::is_done(handle_); }
Status CudaEvent::synchronize() const { return cuda_runtime::wait_until_done(handle_); }

Result<double> elapsed_ms(const CudaEvent& from, const CudaEvent& to) {
  return cuda_runtime::elapsed_ms(from.handle(), to.handle());
}

CudaGraph::~CudaGraph() {
  if (handle_ != nullptr) cuda_runtime::destroy_graph(handle_);
}

CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Status CudaGraph::begin_capture(CudaStream& stream) { return cuda_runtime::begin_capture(stream.handle()); }

Status CudaGraph::end_capture(CudaStream& stream) {
  TRY_ASSIGN(handle_, cuda_runtime::end_capture(stream.handle(), std::exchange(handle_, nullptr)));
  return {};
}

Status CudaGraph::launch(CudaStream& stream) const { return cuda_runtime::launch(handle_, stream.handle()); }

}  // namespace loralei
