// SPDX-License-Identifier: Apache-2.0
// The few primitives of the CUDA runtime that the classes of this folder stand on,
// without its headers: handles are opaque. Two implementations: real/ (the CUDA runtime)
// and emulated/ (host memory, for tests); a program links one.
//
// Internal to device/cuda and ops/cuda.
// Thread: as the CUDA runtime, handles are used from one thread at a time, on the
// device chosen by set_device in that thread.
// Ownership: raw; cuda_memory.h and cuda_stream.h own.
// Failure: a sentence with what was asked for and CUDA's own words; kUnavailable once the
// device is lost (cuda_device.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_device.h"

namespace loralei::cuda_runtime {

using Stream = void*;
using Event = void*;
using Graph = void*;  // an instantiated graph

CudaDevices devices();
Status set_device(int ordinal);
Status memory_info(int64_t* free_bytes, int64_t* total_bytes);

Result<void*> allocate(int64_t bytes);
void release(void* memory);
Result<void*> allocate_pinned(int64_t bytes);
void release_pinned(void* memory);

Result<Stream> create_stream();
void destroy_stream(Stream stream);
Status synchronize(Stream stream);

Result<Event> create_event(bool timed);
void destroy_event(Event event);
Status record(Event event, Stream stream);
Status wait(Stream stream, Event event);  // what is put on the stream after this runs after the event
Result<bool> is_done(Event event);
Status wait_until_done(Event event);  // blocks the thread, without spinning
Result<double> elapsed_ms(Event from, Event to);

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };
Status copy(void* to, const void* from, int64_t bytes, CopyKind kind, Stream stream);
Status fill(void* to, int byte, int64_t bytes, Stream stream);

// Words in pinned memory; no thread waits, and a stream that records takes none of these.
// write_word: 32 bits, once all before it on the stream is done and can be seen.
// wait_for_word: what follows on the stream runs once these 64 bits, as a signed number,
// are `at_least` or more.
Status write_word(Stream stream, void* word, uint32_t value);
Status wait_for_word(Stream stream, const void* word, uint64_t at_least);

Status begin_capture(Stream stream);
// Ends the capture and instantiates what was captured; with `previous`, tries to update
// that one and returns it when nothing but parameters changed, else destroys it and
// returns a new one.
Result<Graph> end_capture(Stream stream, Graph previous);
void destroy_graph(Graph graph);
Status launch(Graph graph, Stream stream);

}  // namespace loralei::cuda_runtime
