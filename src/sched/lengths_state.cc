// SPDX-License-Identifier: Apache-2.0
#include "sched/lengths_state.h"

#include <cmath>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/fast_hash.h"

namespace loralei {
namespace {

constexpr uint32_t kVersion = 1, kOrderMark = 0x01020304;
constexpr float kWeightMost = 1000;  // of a class of lengths: fading keeps their sum below 300
constexpr char kMagic[8] = {'L', 'O', 'R', 'A', 'L', 'E', 'N', '\n'};

struct Head {
  char magic[8];
  uint32_t version, order_mark;
  uint64_t base;
  uint32_t adapters, places, bins, prompt_classes;
};
static_assert(sizeof(Head) == 40);
static_assert(sizeof(LearnedLengths::Weight) == 4 * sizeof(float));

constexpr size_t kLengthsBytes = OutputLengths::kBins * sizeof(float);
constexpr size_t kCommonBytes = (OutputLengths::kPromptClasses + 1) * kLengthsBytes;
constexpr size_t kAdapterBytes = sizeof(uint64_t) + kLengthsBytes;
constexpr size_t kLeastBytes = sizeof(Head) + kCommonBytes + sizeof(uint64_t);
static_assert(kLeastBytes + LengthsState::kAdaptersMost * kAdapterBytes +
                  LearnedLengths::kPlaces * sizeof(LearnedLengths::Weight) <=
              static_cast<size_t>(kLengthsBytesMost));

uint64_t hash_of(std::string_view bytes, uint64_t seed) {
  return fast_hash(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), seed);
}

void put(std::string& bytes, const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); }

void put(std::string& bytes, const OutputLengths::Lengths& lengths) {
  put(bytes, lengths.weight.data(), kLengthsBytes);
}

// Takes from the front of bytes whose size was compared with what they are to hold.
void take(std::string_view& bytes, void* data, size_t size) {
  CHECK(size <= bytes.size());
  std::memcpy(data, bytes.data(), size);
  bytes.remove_prefix(size);
}

bool take(std::string_view& bytes, OutputLengths::Lengths& lengths) {
  take(bytes, lengths.weight.data(), kLengthsBytes);
  lengths.sum = 0;
  for (const float weight : lengths.weight) {
    if (!(weight >= 0 && weight <= kWeightMost)) return false;
    lengths.sum += weight;
  }
  return true;
}

bool is_finite(const LearnedLengths::Weight& weight) {
  return std::isfinite(weight.tilt) && std::isfinite(weight.bend) && std::isfinite(weight.tilt_squares) &&
         std::isfinite(weight.bend_squares);
}

Error damaged(const std::string& what) { return corrupt("it is damaged: " + what); }

// What follows the head, of the size that this says.
Result<LengthsState> take_state(std::string_view bytes, const Head& head) {
  LengthsState state;
  bool sound = true;
  for (OutputLengths::Lengths& lengths : state.common.by_prompt) sound &= take(bytes, lengths);
  sound &= take(bytes, state.common.all);
  state.adapters.resize(head.adapters);
  uint64_t least = 0;
  for (LengthsState::Adapter& one : state.adapters) {
    take(bytes, &one.key, sizeof(one.key));
    sound &= take(bytes, one.lengths) && one.key >= least && one.key < UINT64_MAX;
    least = one.key + 1;
  }
  state.learned.resize(head.places);
  for (LearnedLengths::Weight& weight : state.learned) {
    take(bytes, &weight, sizeof(weight));
    sound &= is_finite(weight);
  }
  if (!sound) return damaged("it holds numbers that nothing learns");
  return state;
}

}  // namespace

std::string encode_lengths(const LengthsState& state, std::string_view base) {
  CHECK(state.adapters.size() <= LengthsState::kAdaptersMost);
  CHECK(state.learned.empty() || state.learned.size() == LearnedLengths::kPlaces);
  Head head{.magic = {},
            .version = kVersion,
            .order_mark = kOrderMark,
            .base = hash_of(base, kVersion),
            .adapters = static_cast<uint32_t>(state.adapters.size()),
            .places = static_cast<uint32_t>(state.learned.size()),
            .bins = OutputLengths::kBins,
            .prompt_classes = OutputLengths::kPromptClasses};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  std::string bytes;
  bytes.reserve(kLeastBytes + state.adapters.size() * kAdapterBytes +
                state.learned.size() * sizeof(LearnedLengths::Weight));
  put(bytes, &head, sizeof(head));
  for (const OutputLengths::Lengths& lengths : state.common.by_prompt) put(bytes, lengths);
  put(bytes, state.common.all);
  for (const LengthsState::Adapter& one : state.adapters) {
    put(bytes, &one.key, sizeof(one.key));
    put(bytes, one.lengths);
  }
  put(bytes, state.learned.data(), state.learned.size() * sizeof(LearnedLengths::Weight));
  const uint64_t checksum = hash_of(bytes, kOrderMark);
  put(bytes, &checksum, sizeof(checksum));
  return bytes;
}

Result<LengthsState> decode_lengths(std::string_view bytes, std::string_view base) {
  Head head{};
  if (bytes.size() < sizeof(head)) return damaged("it ends within its head");
  std::string_view rest = bytes;
  take(rest, &head, sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0) return corrupt("it holds no learned lengths");
  if (head.version != kVersion || head.order_mark != kOrderMark || head.bins != OutputLengths::kBins ||
      head.prompt_classes != OutputLengths::kPromptClasses)
    return corrupt("another version of this program wrote it, or another kind of machine");
  if (head.base != hash_of(base, kVersion)) return corrupt("it was learned of another base model");
  const bool counts =
      head.adapters <= LengthsState::kAdaptersMost && (head.places == 0 || head.places == LearnedLengths::kPlaces);
  if (!counts ||
      bytes.size() != kLeastBytes + head.adapters * kAdapterBytes + head.places * sizeof(LearnedLengths::Weight))
    return damaged("its size is not that of what it says to hold");
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + bytes.size() - sizeof(checksum), sizeof(checksum));
  if (checksum != hash_of(bytes.substr(0, bytes.size() - sizeof(checksum)), kOrderMark))
    return damaged("its checksum is another");
  return take_state(rest, head);
}

}  // namespace loralei
