// SPDX-License-Identifier: Apache-2.0
#include "support/fake_nccl.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace loralei::test {
namespace {

enum Code : int { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };

struct Id {
  char bytes[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

// What a stream waits for: how many ranks' numbers are there, or that it was let go.
struct alignas(8) Word {
  std::atomic<uint32_t> there{0}, ended{0};
};

// One all-gather.
struct Exchange {
  Exchange(int ranks, size_t floats) : count(floats), numbers(static_cast<size_t>(ranks) * floats), words(ranks) {}
  size_t count;
  std::vector<float> numbers;
  std::vector<Word> words;  // of each rank's stream
};

struct Group {
  std::mutex mutex;
  int size = 0;
  std::vector<bool> here;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  bool complete() {
    const std::lock_guard lock(mutex);
    for (const bool one : here)
      if (!one) return false;
    return true;
  }
};

struct Comm {
  std::shared_ptr<Group> group;
  int rank = 0;
  size_t next = 0;  // exchange
  int gathers = 0;
  int error = 0;
  bool never_connects = false;
};

FakeNccl& state() {
  static FakeNccl only;
  return only;
}

std::shared_ptr<Group> group_of(const Id& id, int size) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<Group>> all;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Group>& group = all[std::string(id.bytes, sizeof id.bytes)];
  if (group == nullptr) {
    group = std::make_shared<Group>();
    group->size = size;
    group->here.resize(static_cast<size_t>(size));
  }
  return group;
}

// Null: the ranks do not ask for the same.
std::shared_ptr<Exchange> next_exchange(Comm& comm, size_t count) {
  Group& group = *comm.group;
  const std::lock_guard lock(group.mutex);
  if (comm.next == group.exchanges.size()) group.exchanges.push_back(std::make_shared<Exchange>(group.size, count));
  std::shared_ptr<Exchange> exchange = group.exchanges[comm.next++];
  return exchange->count == count ? exchange : nullptr;
}

bool faulty(const Comm& comm) { return comm.rank == state().faulty_rank; }

}  // namespace

EXPORTED FakeNccl* fake_nccl() { return &state(); }

EXPORTED int ncclGetVersion(int* version) {
  *version = state().version;
  return kSuccess;
}

EXPORTED int ncclGetUniqueId(Id* id) {
  static std::atomic<int> number{0};
  std::memset(id->bytes, 0x5A, sizeof id->bytes);
  const int own = ++number;
  std::memcpy(id->bytes + 100, &own, sizeof own);
  return kSuccess;
}

EXPORTED int ncclCommInitRankConfig(void** to, int size, Id id, int rank, Config* config) {
  if (config->size < sizeof(Config) || config->magic != 0xcafebeef || config->version < 2'14'00)
    return kInvalidArgument;
  if (config->blocking != 0 || rank < 0 || rank >= size) return kInvalidArgument;
  auto comm = std::make_unique<Comm>();
  comm->group = group_of(id, size);
  comm->rank = rank;
  if (comm->group->size != size) return kInvalidUsage;
  if (faulty(*comm) && state().answer_to_connect != kSuccess) {
    if (state().answer_to_connect != kInProgress) return state().answer_to_connect;
    comm->never_connects = true;
  } else {
    const std::lock_guard lock(comm->group->mutex);
    comm->group->here[static_cast<size_t>(rank)] = true;
  }
  ++state().connected;
  *to = comm.release();
  return kInProgress;
}

EXPORTED int ncclCommGetAsyncError(void* handle, int* error) {
  Comm& comm = *static_cast<Comm*>(handle);
  *error = comm.error != 0 ? comm.error : comm.never_connects || !comm.group->complete() ? kInProgress : kSuccess;
  return kSuccess;
}

EXPORTED int ncclAllGather(const void* part, void* all, size_t count, int type, void* handle, void* stream) {
  Comm& comm = *static_cast<Comm*>(handle);
  if (type != 7 || !comm.group->complete()) return kInvalidUsage;
  const bool faults = faulty(comm) && comm.gathers++ >= state().gathers_before;
  if (faults && state().error_behind != 0) comm.error = state().error_behind;
  if (faults && state().answer_to_gather == kInProgress) return kSuccess;
  if (faults && state().answer_to_gather != kSuccess) return state().answer_to_gather;
  const std::shared_ptr<Exchange> exchange = next_exchange(comm, count);
  if (exchange == nullptr) return kInvalidArgument;
  ++state().gathers;
  const auto rank = static_cast<size_t>(comm.rank);
  const FakeStreams& streams = state().streams;
  streams.enqueue(stream, [exchange, part, rank] {
    std::memcpy(exchange->numbers.data() + rank * exchange->count, part, exchange->count * sizeof(float));
    for (Word& word : exchange->words) ++word.there;
  });
  streams.wait_for(stream, &exchange->words[rank], static_cast<uint64_t>(comm.group->size));
  streams.enqueue(stream, [exchange, all] {
    std::memcpy(all, exchange->numbers.data(), exchange->numbers.size() * sizeof(float));
  });
  return kSuccess;
}

EXPORTED int ncclCommAbort(void* handle) {
  const std::unique_ptr<Comm> comm(static_cast<Comm*>(handle));
  const std::lock_guard lock(comm->group->mutex);
  for (const std::shared_ptr<Exchange>& exchange : comm->group->exchanges)
    exchange->words[static_cast<size_t>(comm->rank)].ended = 1;
  ++state().aborted;
  return kSuccess;
}

EXPORTED const char* ncclGetErrorString(int code) { return code == 6 ? "a fake remote error" : "a fake error"; }

}  // namespace loralei::test
