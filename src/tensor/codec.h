// SPDX-License-Identifier: Apache-2.0
// Reference codecs between number formats and f32; exact definitions that every kernel
// is tested against.
//
// Pure functions, any thread, no allocation. `count` is a multiple of the format's
// block_elems (CHECKed).
// Decoding is total: any bytes decode to some floats (hostile files may hold NaN scales;
// callers that care scan). Encoding is defined for f32, f16, bf16, q8_0 and q4_0 (round
// to nearest even for the plain formats; the published ggml reference rounding for q8_0
// and q4_0, so that files equal those that other tools make). An int8 decodes to its
// integer, an fp8 to the number it is; vectors of both are made by quantise_vector,
// which needs a scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace loralei {

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
// e4m3 as the OCP 8-bit floating point specification has it (exponent bias 7, subnormals,
// no infinities, 0x7F and 0xFF NaN, the largest number 448): rounded to nearest even,
// beyond 448 to 448, NaN to NaN.
float fp8_to_f32(uint8_t bits);
uint8_t f32_to_fp8(float value);

void decode_row(DType dtype, const std::byte* source, float* out, int64_t count);
bool can_encode(DType dtype);
void encode_row(DType dtype, const float* source, std::byte* out, int64_t count);

// max|x| / the format's largest number (127, or 448 of fp8): the scale with which it
// covers a vector. 0 where every number is (nearly) zero: below the smallest normal
// scale; NaN where one is not finite. dtype has_vector_scale.
float vector_scale(DType dtype, const float* source, int64_t count);
// out = source / scale rounded to nearest even, for the scale of a vector that holds
// `source`; 0 where the scale is 0 or NaN. out * scale is within scale / 2 of the source
// (fp8: within a sixteenth of it, or scale / 1024), plus its rounding.
void quantise_vector(DType dtype, const float* source, float scale, std::byte* out, int64_t count);

}  // namespace loralei
