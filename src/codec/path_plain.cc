// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "codec/numbers_plain.h"
#include "codec/path.h"
#include "codec/rans_step.h"

namespace loralei {
namespace {
namespace plain {

template <DType kType, bool kOne>
bool read16(const std::byte* source, const float* inv_steps, int16_t* out) {
  bool good = true;
  for (int i = 0; i < 16; ++i)
    good &= read_number<kType>(source + kNumberBytes<kType> * i, inv_steps[kOne ? 0 : i], out[i]);
  return good;
}

template <DType kType, bool kOne>
void write16(const int16_t* in, const float* steps, std::byte* out) {
  for (int i = 0; i < 16; ++i) write_number<kType>(in[i], steps[kOne ? 0 : i], out + kNumberBytes<kType> * i);
}

#include "codec/choose.inl.h"
#include "codec/numbers.inl.h"

bool encode_group(RansWriter& writer, uint8_t choice, const int16_t* integers, int64_t count) {
  const RansChoice form = RansChoice::of(choice);
  const int half = static_cast<int>(count % kRansLanes);
  int64_t at = count - half;
  if (half > 0 && !encode_step(writer, form, integers + at, half)) return false;
  while (at > 0) {
    at -= kRansLanes;
    if (!encode_step(writer, form, integers + at, kRansLanes)) return false;
  }
  return true;
}

bool decode_group(RansReader& reader, uint8_t choice, int64_t count, int16_t* out) {
  const RansChoice form = RansChoice::of(choice);
  for (int64_t at = 0; at < count; at += kRansLanes) {
    const auto lanes = static_cast<int>(count - at < kRansLanes ? count - at : kRansLanes);
    if (!decode_step(reader, form, lanes, out + at)) return false;
  }
  return true;
}

}  // namespace plain
}  // namespace

KvCodecPath kv_codec_path_plain() {
  return {.name = "plain",
          .read_head = plain::read_head,
          .write_head = plain::write_head,
          .subtract = plain::subtract,
          .add = plain::add,
          .choose = plain::choose,
          .encode_group = plain::encode_group,
          .decode_group = plain::decode_group};
}

}  // namespace loralei
