// SPDX-License-Identifier: Apache-2.0
// RankLink: what rank 0 tells the other ranks of a model, in order: the commands that an
// Executor gets. A step travels as the value that it is (step_batch.h).
//
//   frame: kind, bytes | the first bytes of the payload      always kFrameBytes
//   rest of the payload, where there is more                 a second broadcast
//
// Thread: the rank's own. Ownership: a received payload stays until the next receive().
// Invariants: buffers grow to the largest payload and stay: a steady step allocates
// nothing. Numbers are in this machine's order: ranks run the same program.
// Failure: Collective's; a payload that is none (kInternal: another program's rank).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/adapter_message.h"
#include "engine/step_batch.h"
#include "model/model.h"
#include "parallel/collective.h"

namespace loralei {

enum class RankCommand : uint32_t {
  kStop,
  kUseKv,     // a KvView that all ranks can read
  kAnnounce,  // an Adapter's address, likewise
  kWithdraw,
  kStep,
  // Between processes:
  kSetUp,    // a RankSetUp, before all others
  kReceive,  // an adapter (adapter_message.h)
};

// What rank 0 has planned for all.
struct RankSetUp {
  ModelLimits limits;
  int32_t kv_blocks = 0;
  DType kv_dtype = DType::kF16;
};

class RankLink {
 public:
  static constexpr size_t kFrameBytes = 4096;

  explicit RankLink(Collective& group) : group_(group), words_(kFrameBytes / sizeof(uint64_t)) {}

  // --- rank 0
  Status send(RankCommand command, std::span<const std::byte> payload = {});
  Status send_step(const StepBatch& batch);
  Status send_adapter(const Adapter& adapter, const CopyShape& shape);

  // --- the others; as long as it takes
  struct Received {
    RankCommand command = RankCommand::kStop;
    std::span<const std::byte> payload;  // at a multiple of 8
  };
  Result<Received> receive();
  // Of a kStep: its spans lie in the payload. Choices stay at rank 0, as logits do.
  static Result<StepBatch> step_of(std::span<const std::byte> payload);
  void shrink();  // gives back what a large payload took

 private:
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words_)); }
  std::byte* room_for(size_t payload_bytes);
  Status send_bytes(RankCommand command, size_t payload_bytes);

  Collective& group_;
  std::vector<uint64_t> words_;  // the frame, and behind it what does not fit it
};

}  // namespace loralei
