// SPDX-License-Identifier: Apache-2.0
// CudaStream, CudaEvent and CudaGraph: work put on a GPU in order, marks in it, and a
// recorded run of it.
//
// Thread: each object is used by one thread at a time.
// Ownership: move-only, each owns its handle; a stream's destructor waits for nothing,
// so synchronise before what its work uses goes away.
// Invariants: an empty (default-made or moved-from) object may only be assigned
// to or destroyed.
// Failure: operating errors as Status; an error of a kernel appears at a later
// synchronize() and stays (the device context is lost then: end the process). Nothing
// here allocates host memory after create(), but end_capture does.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/result.h"

namespace loralei {

class CudaEvent;
struct StreamGate;  // stream_gate.h

class CudaStream {
 public:
  CudaStream() = default;
  ~CudaStream();
  CudaStream(CudaStream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept;

  static Result<CudaStream> create();
  Status synchronize() const;               // waits until everything put on it is done
  Status record(const CudaEvent& event);    // the event is done when everything put on the stream so far is
  Status wait_for(const CudaEvent& event);  // what is put on the stream later runs after the event; does not block
  // Words in pinned memory. Not while a graph is recorded.
  Status write(std::atomic<uint32_t>& word, uint32_t value);   // when everything put on it so far is done
  Status wait_for(const StreamGate& gate, uint32_t at_least);  // does not block the thread; no other stream either
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
};

class CudaEvent {
 public:
  CudaEvent() = default;
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept;

  static Result<CudaEvent> create(bool timed = false);
  Result<bool> done() const;   // does not block; an event never recorded is done
  Status synchronize() const;  // waits until it is done
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
};

// Between two timed events that are done.
Result<double> elapsed_ms(const CudaEvent& from, const CudaEvent& to);

// What was put on a stream between begin_capture and end_capture is not run but kept, and
// runs as one with launch(). Kernels' arguments are kept by value and memory by address:
// what changes from run to run lies in device buffers.
class CudaGraph {
 public:
  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  Status begin_capture(CudaStream& stream);
  // The first time makes the graph; later captures update it in place where only
  // parameters changed.
  Status end_capture(CudaStream& stream);
  Status launch(CudaStream& stream) const;
  bool empty() const { return handle_ == nullptr; }

 private:
  void* handle_ = nullptr;
};

}  // namespace loralei
