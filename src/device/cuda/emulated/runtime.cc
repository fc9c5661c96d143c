// SPDX-License-Identifier: Apache-2.0
// device/cuda/runtime.h over host memory (emulator.h says how).
#include "device/cuda/runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/prng.h"
#include "base/units.h"
#include "device/cuda/emulated/device_memory.h"
#include "device/cuda/emulated/emulator.h"

namespace loralei::cuda_emulated {
namespace {

using Work = std::function<void()>;

// One thread at a time; kernels tell their failures while the thread that runs
// them is inside.
using Inside = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex& door() {
  static std::recursive_mutex only;
  return only;
}

// Threads that wait for events.
struct WaitingRoom {
  std::mutex mutex;
  std::condition_variable opened;
  bool held = false;
};
WaitingRoom& waiting_room() {
  static WaitingRoom only;
  return only;
}

int64_t refused_copy_bytes = -1, held_copy_bytes = -1, allocations_made = 0;

// Threads that wait for a stream which runs by itself.
std::condition_variable_any& stream_moved() {
  static std::condition_variable_any only;
  return only;
}
bool streams_run = false;  // by themselves

// What stands on a stream: work, and when that may run.
struct Piece {
  Work run;
  std::function<bool()> ready;  // empty: at once
  Work hasten;                  // makes it ready where streams do not run by themselves; empty: others do
  uint64_t rests_in = 64;       // one in so many rests behind it, where they do
  bool may_run() const { return ready == nullptr || ready(); }
};

constexpr auto kLookAgain = std::chrono::microseconds(20);

struct StreamQueue {
  int device = 0;
  std::deque<Piece> waiting;
  uint64_t queued = 0, done = 0;
  bool capturing = false;
  std::vector<Work> captured;
  std::chrono::steady_clock::time_point rests_until = {};

  void put(Piece piece) {
    if (capturing) {
      captured.push_back(std::move(piece.run));
      return;
    }
    waiting.push_back(std::move(piece));
    ++queued;
  }
  // Whether the first piece could run.
  bool run_one() {
    if (!waiting.front().may_run() && waiting.front().hasten) Work(waiting.front().hasten)();
    if (waiting.empty() || !waiting.front().may_run()) return false;
    const Piece piece = std::move(waiting.front());
    waiting.pop_front();
    piece.run();
    ++done;
    return true;
  }
  // The caller is inside, once. While a piece waits for another thread the door is open.
  void run_until(uint64_t count) {
    while (done < count && !waiting.empty()) {
      if (streams_run) {
        stream_moved().wait_for(door(), std::chrono::milliseconds(100));
      } else if (!run_one()) {
        door().unlock();
        std::this_thread::sleep_for(kLookAgain);
        door().lock();
      }
    }
  }
};

std::vector<std::weak_ptr<StreamQueue>>& all_streams() {
  static std::vector<std::weak_ptr<StreamQueue>> all;
  return all;
}

struct Mark {
  std::shared_ptr<StreamQueue> stream;
  uint64_t at = 0;
  bool done() const { return stream == nullptr || stream->done >= at; }
};

struct Recorded {
  std::vector<Work> work;
};

std::string& failure() {
  static std::string first;
  return first;
}
std::shared_ptr<StreamQueue>& queue_of(void* stream) { return *static_cast<std::shared_ptr<StreamQueue>*>(stream); }

struct Pages {
  void* base;
  size_t bytes;
};
std::map<void*, Pages>& memory() {
  static std::map<void*, Pages> all;
  return all;
}
constexpr size_t kPage = 4096;

struct Taken {
  int64_t bytes = 0;
  int device = 0;
};

struct DeviceMemory {
  int64_t total = kDefaultMemoryBytes, others = 0;
  int64_t allocated = 0, peak = 0;
  std::map<void*, Taken> buffers;

  int64_t free(int device) const {
    int64_t left = total - others;
    for (const auto& [data, taken] : buffers) left -= taken.device == device ? taken.bytes : 0;
    return std::max<int64_t>(0, left);
  }
};
DeviceMemory& device_memory() {
  static DeviceMemory only;
  return only;
}

std::vector<bool>& opened() {  // by ordinal
  static std::vector<bool> all(1);
  return all;
}
thread_local int chosen_device = 0;
// Of this thread, which it opens.
int current_device() {
  const Inside inside(door());
  opened()[static_cast<size_t>(chosen_device)] = true;
  return chosen_device;
}

// The stream that records, and whether it was asked for something that
// cannot be recorded.
struct Capture {
  StreamQueue* stream = nullptr;
  bool broken = false, refused = false;
};
Capture& capture() {
  static Capture only;
  return only;
}

// One piece of a stream drawn from those that can go on; false: none can.
bool run_some_stream(Prng& random, int64_t rest_most_us) {
  const Inside inside(door());
  std::erase_if(all_streams(), [](const auto& stream) { return stream.expired(); });
  const size_t count = all_streams().size(), first = count == 0 ? 0 : random.below(count);
  const auto now = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) {
    const std::shared_ptr<StreamQueue> stream = all_streams()[(first + i) % count].lock();
    if (stream == nullptr || stream->waiting.empty() || stream->rests_until > now) continue;
    if (!stream->waiting.front().may_run()) continue;
    const uint64_t rests_in = stream->waiting.front().rests_in;
    stream->run_one();
    if (rest_most_us > 0 && random.below(rests_in) == 0) {
      const auto rest = static_cast<int64_t>(random.below(static_cast<uint64_t>(rest_most_us)));
      stream->rests_until = now + std::chrono::microseconds(rest);
    }
    stream_moved().notify_all();
    return true;
  }
  return false;
}

Error not_recorded(const char* what) {
  capture().broken = true;
  return internal_error(std::string("The GPU could not ") + what +
                        ": operation not permitted when stream is capturing.");
}

}  // namespace

void set_device_count(int count) {
  const Inside inside(door());
  opened().assign(static_cast<size_t>(count), false);
}
bool is_opened(int ordinal) {
  const Inside inside(door());
  return opened()[static_cast<size_t>(ordinal)];
}

void set_memory(int64_t total_bytes, int64_t others_bytes) {
  const Inside inside(door());
  DeviceMemory& device = device_memory();
  device.total = total_bytes;
  device.others = others_bytes;
  device.peak = device.allocated;
}
int64_t allocated_bytes() {
  const Inside inside(door());
  return device_memory().allocated;
}
int64_t peak_allocated_bytes() {
  const Inside inside(door());
  return device_memory().peak;
}

void refuse_captures(bool refuse) {
  const Inside inside(door());
  capture().refused = refuse;
}

void hold_event_waits(bool hold) {
  {
    const std::lock_guard lock(waiting_room().mutex);
    waiting_room().held = hold;
  }
  waiting_room().opened.notify_all();
}

void refuse_copies_of(int64_t bytes) {
  const Inside inside(door());
  refused_copy_bytes = bytes;
}

void hold_copies_of(int64_t bytes) {
  const Inside inside(door());
  held_copy_bytes = bytes;
}

int64_t allocations() {
  const Inside inside(door());
  return allocations_made;
}

void enqueue(void* stream, Work work) {
  const Inside inside(door());
  queue_of(stream)->put({std::move(work), {}, {}});
}

RunningStreams::RunningStreams(uint64_t seed, int64_t rest_most_us) {
  const Inside inside(door());
  CHECK(!streams_run);
  streams_run = true;
  thread_ = std::jthread([seed, rest_most_us](const std::stop_token& stop) {
    Prng random(seed);
    while (!stop.stop_requested()) {
      if (!run_some_stream(random, rest_most_us)) std::this_thread::sleep_for(kLookAgain);
    }
  });
}

RunningStreams::~RunningStreams() {
  thread_.request_stop();
  thread_.join();
  const Inside inside(door());
  streams_run = false;
  stream_moved().notify_all();
}

void fail(std::string sentence) {
  const Inside inside(door());
  if (failure().empty()) failure() = std::move(sentence);
}

std::string take_failure() {
  const Inside inside(door());
  return std::exchange(failure(), "");
}

Status status() {
  if (failure().empty()) return {};
  return device_lost("The emulated GPU failed: " + failure() + ".");
}

Status usable(void* stream) {
  const Inside inside(door());
  TRY(status());
  if (queue_of(stream)->device == current_device()) return {};
  return internal_error("The GPU could not use a stream of another device than the thread's: invalid resource handle.");
}

}  // namespace loralei::cuda_emulated

namespace loralei::cuda_runtime {

using namespace cuda_emulated;

CudaDevices devices() {
  const Inside inside(door());
  CudaDevices found;
  for (int i = 0; i < std::ssize(opened()); ++i) {
    found.list.push_back({.ordinal = i,
                          .name = kMarker,
                          .total_bytes = device_memory().total,
                          .capability_major = 9,
                          .multiprocessors = 4,
                          .l2_bytes = 1 << 20});
  }
  return found;
}

Status set_device(int ordinal) {
  const Inside inside(door());
  if (ordinal < 0 || ordinal >= std::ssize(opened())) {
    return unsupported("GPU " + std::to_string(ordinal) + " cannot be used: the emulated machine has " +
                       std::to_string(opened().size()) + ".");
  }
  chosen_device = ordinal;
  (void)current_device();
  return {};
}

Status memory_info(int64_t* free_bytes, int64_t* total_bytes) {
  const Inside inside(door());
  *free_bytes = device_memory().free(current_device());
  *total_bytes = device_memory().total;
  return {};
}

namespace {

// The data ends (rounded up to 16 bytes) where a page begins that nobody may touch.
Result<void*> map_guarded(int64_t bytes) {
  ++allocations_made;
  if (capture().stream != nullptr) return not_recorded("allocate memory");
  const size_t rounded = (static_cast<size_t>(bytes) + 15) / 16 * 16;
  const size_t mapped = (rounded + kPage - 1) / kPage * kPage + kPage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(base != MAP_FAILED);
  std::memset(base, 0xFF, mapped - kPage);
  CHECK(mprotect(static_cast<std::byte*>(base) + mapped - kPage, kPage, PROT_NONE) == 0);
  void* data = static_cast<std::byte*>(base) + mapped - kPage - rounded;
  memory()[data] = {base, mapped};
  return data;
}

// What lies before the data in its page must still be as it was filled.
void unmap_guarded(void* data) {
  const Pages pages = cuda_emulated::memory().at(data);
  for (auto* p = static_cast<std::byte*>(pages.base); p != data; ++p) {
    if (*p == std::byte{0xFF}) continue;
    std::fprintf(stderr, "a kernel wrote before the start of a device buffer\n");
    std::abort();
  }
  munmap(pages.base, pages.bytes);
  cuda_emulated::memory().erase(data);
}

}  // namespace

Result<void*> allocate(int64_t bytes) {
  const Inside inside(door());
  TRY(status());
  DeviceMemory& device = device_memory();
  const int64_t free_bytes = device.free(current_device());
  if (bytes > free_bytes) {
    return Error{ErrorCode::kOverloaded, "The emulated GPU has " + format_bytes(free_bytes) + " of free memory."};
  }
  TRY_ASSIGN(void* const data, map_guarded(bytes));
  device.buffers[data] = {bytes, current_device()};
  device.allocated += bytes;
  device.peak = std::max(device.peak, device.allocated);
  return data;
}
void release(void* data) {
  const Inside inside(door());
  unmap_guarded(data);
  device_memory().allocated -= device_memory().buffers.at(data).bytes;
  device_memory().buffers.erase(data);
}

Result<void*> allocate_pinned(int64_t bytes) {
  const Inside inside(door());
  TRY(status());
  return map_guarded(bytes);
}
void release_pinned(void* data) {
  const Inside inside(door());
  unmap_guarded(data);
}

Result<Stream> create_stream() {
  auto queue = std::make_shared<StreamQueue>();
  queue->device = current_device();
  const Inside inside(door());
  all_streams().push_back(queue);
  return static_cast<Stream>(new std::shared_ptr<StreamQueue>(std::move(queue)));
}
void destroy_stream(Stream stream) {
  const Inside inside(door());
  queue_of(stream)->run_until(queue_of(stream)->queued);
  delete static_cast<std::shared_ptr<StreamQueue>*>(stream);
}
Status synchronize(Stream stream) {
  const Inside inside(door());
  if (queue_of(stream)->capturing) return not_recorded("finish its work");
  queue_of(stream)->run_until(queue_of(stream)->queued);
  return status();
}

Result<Event> create_event(bool /*timed*/) { return static_cast<Event>(new Mark); }
void destroy_event(Event event) { delete static_cast<Mark*>(event); }
Status record(Event event, Stream stream) {
  const Inside inside(door());
  TRY(usable(stream));
  *static_cast<Mark*>(event) = {queue_of(stream), queue_of(stream)->queued};
  return {};
}
Status wait(Stream stream, Event event) {
  const Inside inside(door());
  TRY(usable(stream));
  const Mark mark = *static_cast<Mark*>(event);
  const Work hasten = [mark] {
    if (mark.stream != nullptr) mark.stream->run_until(mark.at);
  };
  queue_of(stream)->put({hasten, [mark] { return mark.done(); }, hasten});
  return {};
}
Result<bool> is_done(Event event) {
  const Inside inside(door());
  TRY(status());
  const Mark& mark = *static_cast<Mark*>(event);
  if (mark.done()) return true;
  if (!streams_run) mark.stream->run_one();
  TRY(status());
  return mark.done();
}
Status wait_until_done(Event event) {
  {
    std::unique_lock lock(waiting_room().mutex);
    waiting_room().opened.wait(lock, [] { return !waiting_room().held; });
  }
  const Inside inside(door());
  const Mark& mark = *static_cast<Mark*>(event);
  if (mark.stream != nullptr) mark.stream->run_until(mark.at);
  return status();
}
Result<double> elapsed_ms(Event from, Event to) {
  const Inside inside(door());
  if (!static_cast<Mark*>(from)->done() || !static_cast<Mark*>(to)->done()) {
    return internal_error("The GPU could not measure a time: an event is not done.");
  }
  return 1.0;
}

Status copy(void* to, const void* from, int64_t bytes, CopyKind /*kind*/, Stream stream) {
  const Inside inside(door());
  TRY(usable(stream));
  if (bytes == refused_copy_bytes) return internal_error("The GPU could not copy memory: out of resources.");
  queue_of(stream)->put(
      {[=] { std::memmove(to, from, static_cast<size_t>(bytes)); }, [=] { return bytes != held_copy_bytes; }, {}, 2});
  return {};
}
Status fill(void* to, int byte, int64_t bytes, Stream stream) {
  const Inside inside(door());
  TRY(usable(stream));
  enqueue(stream, [=] { std::memset(to, byte, static_cast<size_t>(bytes)); });
  return {};
}

Status write_word(Stream stream, void* word, uint32_t value) {
  const Inside inside(door());
  TRY(usable(stream));
  if (queue_of(stream)->capturing) return not_recorded("write a word");
  enqueue(stream, [=] { static_cast<std::atomic<uint32_t>*>(word)->store(value, std::memory_order_release); });
  return {};
}
Status wait_for_word(Stream stream, const void* word, uint64_t at_least) {
  const Inside inside(door());
  TRY(usable(stream));
  if (queue_of(stream)->capturing) return not_recorded("wait for a word");
  const auto passes = [=] {
    const auto* halves = static_cast<const std::atomic<uint32_t>*>(word);
    const uint64_t number =
        uint64_t{halves[1].load(std::memory_order_acquire)} << 32 | halves[0].load(std::memory_order_acquire);
    return static_cast<int64_t>(number - at_least) >= 0 || !failure().empty();
  };
  queue_of(stream)->put({[] {}, passes, {}});
  return {};
}

Status begin_capture(Stream stream) {
  const Inside inside(door());
  TRY(usable(stream));
  if (capture().refused || capture().stream != nullptr) {
    return internal_error("The GPU could not record a graph: operation not permitted.");
  }
  queue_of(stream)->capturing = true;
  capture().stream = queue_of(stream).get();
  return {};
}
Result<Graph> end_capture(Stream stream, Graph previous) {
  const Inside inside(door());
  delete static_cast<std::shared_ptr<Recorded>*>(previous);
  if (capture().stream != queue_of(stream).get()) {
    return internal_error("The GPU could not record a graph: the stream is not capturing.");
  }
  if (capture().broken) {
    queue_of(stream)->captured.clear();
    queue_of(stream)->capturing = false;
    capture().stream = nullptr;
    capture().broken = false;
    return internal_error("The GPU could not record a graph: the capture was invalidated.");
  }
  auto recorded = std::make_shared<Recorded>();
  recorded->work = std::move(queue_of(stream)->captured);
  queue_of(stream)->captured.clear();
  queue_of(stream)->capturing = false;
  capture().stream = nullptr;
  return static_cast<Graph>(new std::shared_ptr<Recorded>(std::move(recorded)));
}
void destroy_graph(Graph graph) { delete static_cast<std::shared_ptr<Recorded>*>(graph); }
Status launch(Graph graph, Stream stream) {
  const Inside inside(door());
  TRY(usable(stream));
  enqueue(stream, [recorded = *static_cast<std::shared_ptr<Recorded>*>(graph)] {
    for (const Work& work : recorded->work) work();
  });
  return {};
}

}  // namespace loralei::cuda_runtime
