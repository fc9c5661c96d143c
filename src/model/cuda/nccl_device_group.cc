// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/nccl_device_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "base/check.h"
#include "model/cuda/cuda_kv.h"
#include "ops/cuda/cuda_ops.h"

namespace loralei {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kYieldNs = 2'000'000;  // as long as most steps take; then the core is for others
constexpr auto kRest = std::chrono::microseconds(50);

}  // namespace

int64_t NcclDeviceGroup::device_bytes(int size, const Options& options) { return kFloat * options.chunk_floats * size; }

Result<std::unique_ptr<NcclDeviceGroup>> NcclDeviceGroup::create(Collective& hosts, const Options& options) {
  CHECK(options.chunk_floats > 0 && options.chunk_floats <= INT32_MAX);
  std::unique_ptr<NcclDeviceGroup> group(new NcclDeviceGroup(hosts, options));
  Status made = group->prepare();
  if (made.ok()) made = group->connect();
  if (made.ok()) return group;
  hosts.fail(made.error());  // so that nobody waits for this rank
  return std::move(made).error();
}

Status NcclDeviceGroup::prepare() {
  TRY_ASSIGN(library_, NcclLibrary::open(options_.library));
  TRY_ASSIGN(received_, allocate_on_device(device_bytes(size(), options_), "What other ranks send",
                                           "leave --tensor-parallel out."));
  TRY_ASSIGN(reached_, CudaEvent::create());
  return {};
}

// All ranks have what they need before any begins to wait for others in NCCL.
Status NcclDeviceGroup::connect() {
  NcclLibrary::UniqueId id{};
  TRY(hosts_.barrier());
  if (rank() == 0) {
    const NcclLibrary::Code named = library_.get_unique_id(&id);
    if (named != NcclLibrary::kSuccess) return error_of(named, "name the group");
  }
  TRY(hosts_.broadcast(std::as_writable_bytes(std::span(id.bytes))));
  NcclLibrary::Config config;
  return answer_of(library_.init_rank(&comm_, size(), id, rank(), &config), "connect the ranks");
}

NcclDeviceGroup::~NcclDeviceGroup() {
  if (comm_ != nullptr) (void)library_.abort(comm_);  // which waits for nobody
}

Error NcclDeviceGroup::error_of(NcclLibrary::Code code, const std::string& what) const {
  return {ErrorCode::kUnavailable, "NCCL could not " + what + " at rank " + std::to_string(rank()) + " of " +
                                       std::to_string(size()) + " (" + library_.error_string(code) +
                                       "), which ends the tensor-parallel group; start the server again."};
}

Error NcclDeviceGroup::late(const std::string& what, int64_t waited_ns) const {
  return {ErrorCode::kUnavailable, "Rank " + std::to_string(rank()) + " of " + std::to_string(size()) + " waited " +
                                       std::to_string(waited_ns / 1'000'000) + " ms for the other GPUs to " + what +
                                       ", which ends the tensor-parallel group; start the server again."};
}

// What this rank met, or what another one has met before. Kernels that wait for other
// ranks let go.
Status NcclDeviceGroup::end(Error why) {
  hosts_.fail(std::move(why));
  if (comm_ != nullptr) (void)library_.abort(std::exchange(comm_, nullptr));
  return health();
}

// Until NCCL has nothing more to do for a call and is_done(), or the group has ended. An
// error lets kernels go, so what they have done counts where there is none behind it.
template <typename Done>
Status NcclDeviceGroup::await(const std::string& what, Done&& is_done) {
  const int64_t begin_ns = clock_.now_ns();
  for (;;) {
    const Result<bool> done = is_done();
    if (!done.ok()) return end(done.error());
    if (const Status others = health(); !others.ok()) return end(others.error());
    NcclLibrary::Code state = NcclLibrary::kSuccess;
    const NcclLibrary::Code asked = library_.async_error(comm_, &state);
    const NcclLibrary::Code met = asked == NcclLibrary::kSuccess ? state : asked;
    if (met == NcclLibrary::kSuccess && *done) return {};
    if (met != NcclLibrary::kSuccess && met != NcclLibrary::kInProgress) return end(error_of(met, what));
    const int64_t waited_ns = clock_.now_ns() - begin_ns;
    if (waited_ns > options_.late_ns) return end(late(what, waited_ns));
    if (waited_ns < kYieldNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kRest);
    }
  }
}

// Of a call that NCCL may go on with: the next one has to wait for that.
Status NcclDeviceGroup::answer_of(NcclLibrary::Code code, const std::string& what) {
  if (code == NcclLibrary::kSuccess) return {};
  if (code != NcclLibrary::kInProgress) return end(error_of(code, what));
  return await(what, [] { return Result<bool>(true); });
}

// Every rank's numbers into what was received, side by side.
Status NcclDeviceGroup::all_gather(CudaStream& stream, const float* part, int64_t count) {
  return answer_of(library_.all_gather(part, from(0, count), static_cast<size_t>(count), NcclLibrary::kFloat, comm_,
                                       stream.handle()),
                   "exchange numbers");
}

Status NcclDeviceGroup::all_reduce_sum(CudaStream& stream, float* values, int64_t count) {
  if (const Status others = health(); !others.ok()) return end(others.error());
  for (int64_t done = 0; done < count; done += options_.chunk_floats) {
    const int64_t floats = std::min(options_.chunk_floats, count - done);
    TRY(all_gather(stream, values + done, floats));
    TRY(copy_on_device(values + done, from(0, floats), kFloat * floats, stream));
    for (int other = 1; other < size(); ++other) {
      TRY(cuda::add(stream, {.x = from(other, floats),
                             .x_stride = floats,
                             .y = values + done,
                             .y_stride = floats,
                             .rows = 1,
                             .dim = static_cast<int32_t>(floats)}));
    }
  }
  return {};
}

Status NcclDeviceGroup::gather(CudaStream& stream, const float* part, int64_t count, float* all) {
  if (const Status others = health(); !others.ok()) return end(others.error());
  for (int64_t done = 0; done < count; done += options_.chunk_floats) {
    const int64_t floats = std::min(options_.chunk_floats, count - done);
    TRY(all_gather(stream, part + done, floats));
    for (int other = 0; other < size() && rank() == 0; ++other)
      TRY(copy_on_device(all + other * count + done, from(other, floats), kFloat * floats, stream));
  }
  return {};
}

Status NcclDeviceGroup::finish(CudaStream& stream) {
  Status reached = comm_ == nullptr ? health() : stream.record(reached_);
  if (reached.ok()) reached = await("finish a step", [&] { return reached_.done(); });
  const Status done = stream.synchronize();  // what the host reads and writes is let go of, failed or not
  TRY(std::move(reached));
  return done;
}

}  // namespace loralei
