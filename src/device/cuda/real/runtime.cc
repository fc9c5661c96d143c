// SPDX-License-Identifier: Apache-2.0
// device/cuda/runtime.h over the CUDA runtime (linked statically; it finds the driver
// when first called).
#include "device/cuda/runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "device/cuda/real/cuda_error.h"
#include "device/cuda/real/word_kernels.h"

namespace loralei::cuda_runtime {
namespace {

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

// CUDA says of these that every later call answers the same, or the hardware failed:
// only another process can go on.
bool loses_the_device(cudaError_t code) {
  switch (static_cast<int>(code)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
    case 226:  // cudaErrorContained, which older toolkits do not name, as the next two
    case 721:  // cudaErrorTensorMemoryLeak
    case 911:  // cudaErrorExternalDevice
      return true;
    default:
      return false;
  }
}

// What a stream does with words in memory by itself; null: this device's streams may not.
struct WordOperations {
  decltype(&cuStreamWriteValue32) write = nullptr;
  decltype(&cuStreamWaitValue64) wait = nullptr;
};

void* driver_function(const char* name) {
  void* function = nullptr;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault);
#endif
  if (code == cudaSuccess) return function;
  (void)cudaGetLastError();
  return nullptr;
}

WordOperations find_word_operations(int device) {
  const auto attribute = reinterpret_cast<decltype(&cuDeviceGetAttribute)>(driver_function("cuDeviceGetAttribute"));
  int allowed = 0;
  if (attribute == nullptr ||
      attribute(&allowed, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) != CUDA_SUCCESS || allowed == 0) {
    return {};
  }
  const WordOperations found{reinterpret_cast<decltype(&cuStreamWriteValue32)>(driver_function("cuStreamWriteValue32")),
                             reinterpret_cast<decltype(&cuStreamWaitValue64)>(driver_function("cuStreamWaitValue64"))};
  return found.write != nullptr && found.wait != nullptr ? found : WordOperations();
}

// Of the thread's device, which it rarely changes.
const WordOperations& word_operations() {
  thread_local int of = -1;
  thread_local WordOperations operations;
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess && device != of) {
    operations = find_word_operations(device);
    of = device;
  }
  return operations;
}

// The driver's numbers of errors are the runtime's.
Status check(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return {};
  return cuda_error(static_cast<cudaError_t>(code), what);
}

Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return cuda_error(code, what);
}

}  // namespace

Error cuda_error(cudaError_t code, const std::string& what) {
  (void)cudaGetLastError();
  const std::string sentence =
      "The GPU could not " + what + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ").";
  if (loses_the_device(code)) return device_lost(sentence);
  return {code == cudaErrorMemoryAllocation ? ErrorCode::kOverloaded : ErrorCode::kInternal, sentence};
}

CudaDevices devices() {
  CudaDevices found;
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    found.reason =
        std::string("No GPU can be used: ") + (code != cudaSuccess ? cudaGetErrorString(code) : "none found") + ".";
    return found;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (const cudaError_t refused = cudaGetDeviceProperties(&properties, i); refused != cudaSuccess) {
      (void)cudaGetLastError();
      found.reason = "GPU " + std::to_string(i) + " cannot be used: " + cudaGetErrorString(refused) + ".";
      continue;
    }
    found.list.push_back({.ordinal = i,
                          .name = properties.name,
                          .total_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                          .capability_major = properties.major,
                          .capability_minor = properties.minor,
                          .multiprocessors = properties.multiProcessorCount,
                          .l2_bytes = properties.l2CacheSize});
  }
  if (!found.list.empty()) found.reason.clear();
  return found;
}

Status set_device(int ordinal) {
  const cudaError_t code = cudaSetDevice(ordinal);
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();  // else the next launch reports it
  return unsupported("GPU " + std::to_string(ordinal) + " cannot be used: " + cudaGetErrorString(code) +
                     "; choose one of those listed at start.");
}

Status memory_info(int64_t* free_bytes, int64_t* total_bytes) {
  size_t free_size = 0, total_size = 0;
  TRY(check(cudaMemGetInfo(&free_size, &total_size), "tell its free memory"));
  *free_bytes = static_cast<int64_t>(free_size);
  *total_bytes = static_cast<int64_t>(total_size);
  return {};
}

Result<void*> allocate(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t code = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (code == cudaSuccess) return memory;
  return cuda_error(code, "give " + std::to_string(bytes) + " bytes of memory");
}
void release(void* memory) { (void)cudaFree(memory); }

Result<void*> allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t code = cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault);
  if (code == cudaSuccess) return memory;
  return cuda_error(code, "pin " + std::to_string(bytes) + " bytes of host memory");
}
void release_pinned(void* memory) { (void)cudaFreeHost(memory); }

Result<Stream> create_stream() {
  cudaStream_t stream = nullptr;
  TRY(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream"));
  return static_cast<Stream>(stream);
}
void destroy_stream(Stream stream) { (void)cudaStreamDestroy(stream_of(stream)); }
Status synchronize(Stream stream) {
  return check(cudaStreamSynchronize(stream_of(stream)),
               "finish the kernels and copies it was given (CUDA_LAUNCH_BLOCKING=1 in the environment, with "
               "--enforce-eager, names the kernel)");
}

Result<Event> create_event(bool timed) {
  cudaEvent_t event = nullptr;
  const unsigned flags = cudaEventBlockingSync | (timed ? cudaEventDefault : cudaEventDisableTiming);
  TRY(check(cudaEventCreateWithFlags(&event, flags), "make an event"));
  return static_cast<Event>(event);
}
void destroy_event(Event event) { (void)cudaEventDestroy(event_of(event)); }
Status record(Event event, Stream stream) {
  return check(cudaEventRecord(event_of(event), stream_of(stream)), "record an event");
}
Status wait(Stream stream, Event event) {
  return check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "wait for an event");
}
Result<bool> is_done(Event event) {
  const cudaError_t code = cudaEventQuery(event_of(event));
  if (code == cudaErrorNotReady) return false;
  TRY(check(code, "tell whether an event is done"));
  return true;
}
Status wait_until_done(Event event) {
  return check(cudaEventSynchronize(event_of(event)), "finish what an event stands behind");
}
Result<double> elapsed_ms(Event from, Event to) {
  float ms = 0;
  TRY(check(cudaEventElapsedTime(&ms, event_of(from), event_of(to)), "measure a time"));
  return static_cast<double>(ms);
}

Status copy(void* to, const void* from, int64_t bytes, CopyKind kind, Stream stream) {
  const cudaMemcpyKind cuda_kind = kind == CopyKind::kHostToDevice   ? cudaMemcpyHostToDevice
                                   : kind == CopyKind::kDeviceToHost ? cudaMemcpyDeviceToHost
                                                                     : cudaMemcpyDeviceToDevice;
  const cudaError_t code = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cuda_kind, stream_of(stream));
  if (code == cudaSuccess) return {};
  const char* const where = kind == CopyKind::kHostToDevice   ? " bytes to it"
                            : kind == CopyKind::kDeviceToHost ? " bytes to the host"
                                                              : " bytes within its memory";
  return cuda_error(code, "copy " + std::to_string(bytes) + where);
}
Status fill(void* to, int byte, int64_t bytes, Stream stream) {
  return check(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_of(stream)), "fill memory");
}

Status write_word(Stream stream, void* word, uint32_t value) {
  constexpr const char* kWhat = "write a word of host memory";
  if (const auto write = word_operations().write; write != nullptr) {
    const CUresult code = write(stream_of(stream), reinterpret_cast<CUdeviceptr>(word), value,
                                CU_STREAM_WRITE_VALUE_DEFAULT);  // with a barrier: all before it is seen first
    return check(code, kWhat);
  }
  return check(launch_write_word(stream_of(stream), word, value), kWhat);
}
Status wait_for_word(Stream stream, const void* word, uint64_t at_least) {
  constexpr const char* kWhat = "wait for a word of host memory";
  if (const auto wait = word_operations().wait; wait != nullptr) {
    return check(wait(stream_of(stream), reinterpret_cast<CUdeviceptr>(word), at_least, CU_STREAM_WAIT_VALUE_GEQ),
                 kWhat);
  }
  return check(launch_wait_for_word(stream_of(stream), word, at_least), kWhat);
}

Status begin_capture(Stream stream) {
  return check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "record a graph");
}

Result<Graph> end_capture(Stream stream, Graph previous) {
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t graph = static_cast<cudaGraphExec_t>(previous);
  cudaError_t code = cudaStreamEndCapture(stream_of(stream), &recorded);
  if (code == cudaSuccess && graph != nullptr) {
    cudaGraphExecUpdateResultInfo info;
    if (cudaGraphExecUpdate(graph, recorded, &info) != cudaSuccess) {
      (void)cudaGetLastError();
      (void)cudaGraphExecDestroy(graph);
      graph = nullptr;
    }
  }
  if (code == cudaSuccess && graph == nullptr) code = cudaGraphInstantiate(&graph, recorded, 0);
  if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
  if (code == cudaSuccess) return static_cast<Graph>(graph);
  if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
  return cuda_error(code, "record a graph");
}
void destroy_graph(Graph graph) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }
Status launch(Graph graph, Stream stream) {
  return check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "run a recorded step");
}

}  // namespace loralei::cuda_runtime
