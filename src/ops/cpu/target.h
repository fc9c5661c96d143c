// SPDX-License-Identifier: Apache-2.0
// Marks a region of code as compiled for an instruction set that the rest of the program
// does not assume.
//
// A kernel body (*.inl.h) is included once per instruction set between
// LORALEI_TARGET_BEGIN_x and LORALEI_TARGET_END, each time in a namespace of its own.
// Lambdas inside such a region do not carry the attribute under clang: they may call
// kernels, not hold vectors.
#pragma once

// A _Pragma takes one string, hence the long lines.
// clang-format off
#if defined(__clang__)
#define LORALEI_TARGET_BEGIN_AVX2 _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_AVX_VNNI _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c,avxvnni\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_AVX512 _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_VNNI _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_AVX512_BF16 _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_AMX _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_AMX_BF16 _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_DOTPROD _Pragma("clang attribute push(__attribute__((target(\"dotprod\"))), apply_to = function)")
#define LORALEI_TARGET_BEGIN_I8MM _Pragma("clang attribute push(__attribute__((target(\"dotprod,i8mm\"))), apply_to = function)")
#define LORALEI_TARGET_END _Pragma("clang attribute pop")
#define LORALEI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LORALEI_TARGET_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define LORALEI_TARGET_BEGIN_AVX_VNNI _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c,avxvnni\")")
#define LORALEI_TARGET_BEGIN_AVX512 _Pragma("GCC push_options") _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq\")")
#define LORALEI_TARGET_BEGIN_VNNI _Pragma("GCC push_options") _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni\")")
#define LORALEI_TARGET_BEGIN_AVX512_BF16 _Pragma("GCC push_options") _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16\")")
#define LORALEI_TARGET_BEGIN_AMX _Pragma("GCC push_options") _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8\")")
#define LORALEI_TARGET_BEGIN_AMX_BF16 _Pragma("GCC push_options") _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16\")")
#define LORALEI_TARGET_BEGIN_DOTPROD _Pragma("GCC push_options") _Pragma("GCC target(\"arch=armv8.2-a+dotprod\")")
#define LORALEI_TARGET_BEGIN_I8MM _Pragma("GCC push_options") _Pragma("GCC target(\"arch=armv8.2-a+dotprod+i8mm\")")
#define LORALEI_TARGET_END _Pragma("GCC pop_options")
#define LORALEI_UNROLL _Pragma("GCC unroll 16")
#endif
// clang-format on

#define LORALEI_INLINE inline __attribute__((always_inline))
#define LORALEI_INLINE_LAMBDA __attribute__((always_inline))  // behind its parameters
