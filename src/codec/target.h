// SPDX-License-Identifier: Apache-2.0
// Marks a region of code as compiled for an instruction set that the rest of the program
// does not assume, as ops/cpu/target.h does. Bodies (*.inl.h) are included once a set
// between BEGIN and END, each time in a namespace of its own.
#pragma once

// A _Pragma takes one string, hence the long lines.
// clang-format off
#if defined(__clang__)
#define LORALEI_CODEC_BEGIN_AVX2 _Pragma("clang attribute push(__attribute__((target(\"avx2,f16c,popcnt\"))), apply_to = function)")
#define LORALEI_CODEC_BEGIN_AVX512 _Pragma("clang attribute push(__attribute__((target(\"avx2,f16c,popcnt,avx512f,avx512bw,avx512vl,avx512dq\"))), apply_to = function)")
#define LORALEI_CODEC_END _Pragma("clang attribute pop")
#else
#define LORALEI_CODEC_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,f16c,popcnt\")")
#define LORALEI_CODEC_BEGIN_AVX512 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,f16c,popcnt,avx512f,avx512bw,avx512vl,avx512dq\")")
#define LORALEI_CODEC_END _Pragma("GCC pop_options")
#endif
// clang-format on
