// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace loralei {
namespace {

struct FrameHead {
  uint32_t command = 0;
  uint32_t unused = 0;
  uint64_t payload_bytes = 0;
};

// Far beyond any step or adapter: a length that is none is not allocated.
constexpr uint64_t kPayloadMost = uint64_t{1} << 40;

constexpr size_t aligned8(size_t bytes) { return (bytes + 7) / 8 * 8; }

// The arrays of a step, in the order in which they travel.
template <typename Batch, typename Visit>
void for_each_array(Batch& batch, Visit&& visit) {
  visit(batch.tokens);
  visit(batch.positions);
  visit(batch.blocks);
  visit(batch.groups);
  visit(batch.segments);
  visit(batch.adapters);
  visit(batch.first_layers);
  visit(batch.replaced);
  visit(batch.logits_rows);
  visit(batch.hidden_rows);
}
constexpr size_t kArrays = 10;

struct StepHead {
  uint64_t step = 0;
  int64_t arrivals_wait_ns = 0;
  std::array<uint64_t, kArrays> counts{};
};

size_t step_bytes(const StepBatch& batch) {
  size_t bytes = sizeof(StepHead);
  for_each_array(batch, [&](const auto& array) { bytes += aligned8(array.size_bytes()); });
  return bytes;
}

Error not_a_step() {
  return internal_error("A rank was sent something that is no step; start all ranks from the same program.");
}

}  // namespace

std::byte* RankLink::room_for(size_t payload_bytes) {
  const size_t words = aligned8(std::max(sizeof(FrameHead) + payload_bytes, kFrameBytes)) / sizeof(uint64_t);
  if (words_.size() < words) words_.resize(words);
  return bytes().data() + sizeof(FrameHead);
}

Status RankLink::send_bytes(RankCommand command, size_t payload_bytes) {
  const FrameHead head{static_cast<uint32_t>(command), 0, payload_bytes};
  std::memcpy(bytes().data(), &head, sizeof head);
  TRY(group_.broadcast(bytes().first(kFrameBytes)));
  const size_t all = sizeof head + payload_bytes;
  return all <= kFrameBytes ? Status() : group_.broadcast(bytes().subspan(kFrameBytes, all - kFrameBytes));
}

Status RankLink::send(RankCommand command, std::span<const std::byte> payload) {
  std::byte* const to = room_for(payload.size());
  if (!payload.empty()) std::memcpy(to, payload.data(), payload.size());
  return send_bytes(command, payload.size());
}

Status RankLink::send_step(const StepBatch& batch) {
  const size_t all = step_bytes(batch);
  std::byte* to = room_for(all);
  StepHead head{batch.step, batch.arrivals_wait_ns, {}};
  size_t index = 0;
  for_each_array(batch, [&](const auto& array) { head.counts[index++] = array.size(); });
  std::memcpy(to, &head, sizeof head);
  to += sizeof head;
  for_each_array(batch, [&](const auto& array) {
    if (!array.empty()) std::memcpy(to, array.data(), array.size_bytes());
    to += aligned8(array.size_bytes());
  });
  return send_bytes(RankCommand::kStep, all);
}

Status RankLink::send_adapter(const Adapter& adapter, const CopyShape& shape) {
  const size_t all = adapter_message_bytes(adapter, shape);
  std::byte* const to = room_for(all);
  write_adapter_message(adapter, shape, {to, all});
  const Status sent = send_bytes(RankCommand::kReceive, all);
  shrink();
  return sent;
}

// An adapter's bytes are not kept here as well.
void RankLink::shrink() {
  constexpr size_t kKeptWords = (size_t{1} << 20) / sizeof(uint64_t);
  if (words_.size() <= kKeptWords) return;
  words_.resize(kFrameBytes / sizeof(uint64_t));
  words_.shrink_to_fit();
}

Result<RankLink::Received> RankLink::receive() {
  TRY(group_.broadcast(bytes().first(kFrameBytes)));
  FrameHead head;
  std::memcpy(&head, bytes().data(), sizeof head);
  if (head.command > static_cast<uint32_t>(RankCommand::kReceive) || head.payload_bytes > kPayloadMost)
    return not_a_step();
  const size_t all = sizeof head + head.payload_bytes;
  room_for(head.payload_bytes);
  if (all > kFrameBytes) TRY(group_.broadcast(bytes().subspan(kFrameBytes, all - kFrameBytes)));
  return Received{static_cast<RankCommand>(head.command), bytes().subspan(sizeof head, head.payload_bytes)};
}

Result<StepBatch> RankLink::step_of(std::span<const std::byte> payload) {
  StepHead head;
  if (payload.size() < sizeof head) return not_a_step();
  std::memcpy(&head, payload.data(), sizeof head);
  StepBatch batch;
  batch.step = head.step;
  batch.arrivals_wait_ns = head.arrivals_wait_ns;
  size_t at = sizeof head, index = 0;
  bool fits = true;
  for_each_array(batch, [&](auto& array) {
    using Element = std::remove_const_t<typename std::remove_reference_t<decltype(array)>::element_type>;
    static_assert(std::is_trivially_copyable_v<Element> && alignof(Element) <= 8);
    const uint64_t count = head.counts[index++];
    if (!fits || count > (payload.size() - at) / sizeof(Element)) {
      fits = false;
      return;
    }
    array = {reinterpret_cast<const Element*>(payload.data() + at), count};
    at = std::min(payload.size(), at + aligned8(count * sizeof(Element)));
  });
  if (!fits) return not_a_step();
  return batch;
}

}  // namespace loralei
