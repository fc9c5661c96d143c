// SPDX-License-Identifier: Apache-2.0
// The words in which kernels are written once: nvcc compiles them for a GPU, the C++
// compiler for the emulated one (device/cuda/emulated/emulator.h), where the tests of
// every build run the very same source.
//
// A kernel is `KERNEL void name(arguments by value)`, helpers are DEVICE; shared memory
// is declared with SHARED_ARRAY or taken from shared_bytes(); an argument that is indexed
// at run time is GRID_CONSTANT const, else each thread copies it into its own memory;
// launch() starts a kernel on a stream in both worlds, under the name that errors say.
// Floating-point numbers of 16 bits are uint16_t with conversions of our own, rounded
// to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

#ifdef LORALEI_CUDA_EMULATION
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "device/cuda/emulated/emulator.h"
#include "tensor/codec.h"
#define KERNEL
#define DEVICE inline
#define BLOCK_LIMIT(threads)
#define GRID_CONSTANT
#define BLOCK_LIMITS(threads, blocks)
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "device/cuda/real/cuda_error.h"
#define KERNEL __global__
#define DEVICE __device__ __forceinline__
#define BLOCK_LIMIT(threads) __launch_bounds__(threads)
#define GRID_CONSTANT __grid_constant__
// So few registers that so many blocks are under way on a multiprocessor.
#define BLOCK_LIMITS(threads, blocks) __launch_bounds__(threads, blocks)
#endif

namespace loralei::cuda {

inline constexpr unsigned kFullWarp = 0xFFFFFFFFu;
// A block gets 48 KiB of shared memory, its arrays included, unless the launch asks for
// more: what is left of it for the arrays is less than any kernel here declares.
inline constexpr size_t kSharedAskedFrom = 32 * 1024;

#ifdef LORALEI_CUDA_EMULATION

using Dim3 = cuda_emulated::Dim3;
#define threadIdx ::loralei::cuda_emulated::thread_index
#define blockIdx ::loralei::cuda_emulated::block_index
#define blockDim ::loralei::cuda_emulated::block_size
#define gridDim ::loralei::cuda_emulated::grid_size
#define SHARED_ARRAY(type, name, count) \
  static char name##_key;               \
  type* const name =                    \
      reinterpret_cast<type*>(::loralei::cuda_emulated::static_shared(&name##_key, sizeof(type) * (count)))
inline std::byte* shared_bytes() { return cuda_emulated::dynamic_shared(); }

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

using Place = std::source_location;
inline void __syncthreads(Place at = Place::current()) { cuda_emulated::block_barrier(at); }
inline void __syncwarp(unsigned mask = kFullWarp, Place at = Place::current()) {
  cuda_emulated::exchange(mask, {}, at);
}
inline unsigned lane_of_block() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % cuda_emulated::kWarp;
}
template <typename T>
T shuffle_from(unsigned mask, T value, unsigned lane, Place at) {
  static_assert(sizeof(T) == 4);
  return std::bit_cast<T>(cuda_emulated::exchange(mask, {{std::bit_cast<uint32_t>(value)}}, at)[lane].words[0]);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, Place at = Place::current()) {
  return shuffle_from(mask, value, static_cast<unsigned>(lane) % 32, at);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, Place at = Place::current()) {
  return shuffle_from(mask, value, lane_of_block() ^ static_cast<unsigned>(bits), at);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, Place at = Place::current()) {
  const unsigned lane = lane_of_block();
  return shuffle_from(mask, value, lane + by < 32 ? lane + by : lane, at);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, Place at = Place::current()) {
  const unsigned lane = lane_of_block();
  return shuffle_from(mask, value, lane >= by ? lane - by : lane, at);
}
inline unsigned __ballot_sync(unsigned mask, bool yes, Place at = Place::current()) {
  const cuda_emulated::WarpSlot* slots = cuda_emulated::exchange(mask, {{yes ? 1u : 0u}}, at);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i) votes |= (mask >> i & 1) != 0 && slots[i].words[0] != 0 ? 1u << i : 0u;
  return votes;
}
template <typename T>
T atomicAdd(T* at, T value) {
  return std::exchange(*at, *at + value);
}

template <typename T>
T __ldg(const T* from) {
  return *from;
}
// Bytes that nobody writes while the kernel runs and this multiprocessor does not read
// again. Loads stand where they are written: before what they have the time of.
inline uint4 load_once(const uint4* from) { return *from; }
inline uint32_t load_once(const uint32_t* from) { return *from; }
inline uint16_t load_once(const uint16_t* from) { return *from; }

// 16 bytes from global to shared memory, both aligned, past registers and on their way
// until await_copies(); zeros unless `wanted` (then `from` is not read). Other threads
// see them behind the next barrier.
inline void copy_async(void* to, const void* from, bool wanted) {
  cuda_emulated::copy_later(to, wanted ? from : nullptr);
}
inline void await_copies() { cuda_emulated::await_copies(); }

inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline void sincosf(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
using std::fabs;
using std::fma;
using std::fmaf;
using std::fmaxf;
using std::max;
using std::min;
inline float f16_to_float(uint16_t bits) { return f16_to_f32(bits); }
inline uint16_t float_to_f16(float x) { return f32_to_f16(x); }

// d += a b, [16, 16] x [16, 8], the lanes' parts as PTX's mma.m16n8k16 has them; products
// and their sum in double.
template <typename Decode>
void emulate_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Decode decode, Place at) {
  const cuda_emulated::WarpSlot* lanes = cuda_emulated::exchange(kFullWarp, {{a[0], a[1], a[2], a[3], b[0], b[1]}}, at);
  const unsigned group = lane_of_block() / 4, quarter = lane_of_block() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned lower = i / 2, column = quarter * 2 + i % 2;
    double sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const uint32_t* from_a = lanes[group * 4 + k % 8 / 2].words;
      const uint32_t* from_b = lanes[column * 4 + k % 8 / 2].words;
      const uint32_t x = from_a[k / 8 * 2 + lower] >> k % 2 * 16, y = from_b[4 + k / 8] >> k % 2 * 16;
      sum +=
          static_cast<double>(decode(static_cast<uint16_t>(x))) * static_cast<double>(decode(static_cast<uint16_t>(y)));
    }
    d[i] = static_cast<float>(static_cast<double>(d[i]) + sum);
  }
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place at = Place::current()) {
  emulate_mma(d, a, b, bf16_to_f32, at);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place at = Place::current()) {
  emulate_mma(d, a, b, f16_to_f32, at);
}

// Four matrices [8, 8] of 16-bit numbers in shared memory, as the right side of
// products wants them: lane i says where row i % 8 of matrix i / 8 begins (16 bytes,
// aligned) and gets of every matrix two neighbours of row i / 4; of the transposed matrix
// where it says so.
inline uint32_t emulated_matrix_pair(const cuda_emulated::WarpSlot* lanes, unsigned matrix, bool transposed) {
  const unsigned row = lane_of_block() / 4, column = lane_of_block() % 4 * 2;
  const auto number = [&](unsigned r, unsigned c) -> uint32_t {
    return reinterpret_cast<const uint16_t*>(std::bit_cast<uint64_t>(
        std::array<uint32_t, 2>{lanes[matrix * 8 + r].words[0], lanes[matrix * 8 + r].words[1]}))[c];
  };
  return transposed ? number(column, row) | number(column + 1, row) << 16
                    : number(row, column) | number(row, column + 1) << 16;
}
inline void emulate_load_matrices(uint32_t (&to)[4], const uint16_t* row, bool transposed, Place at) {
  const auto address = std::bit_cast<std::array<uint32_t, 2>>(reinterpret_cast<uint64_t>(row));
  const cuda_emulated::WarpSlot* lanes = cuda_emulated::exchange(kFullWarp, {{address[0], address[1]}}, at);
  for (unsigned i = 0; i < 4; ++i) to[i] = emulated_matrix_pair(lanes, i, transposed);
}
inline void load_matrices(uint32_t (&to)[4], const uint16_t* row, Place at = Place::current()) {
  emulate_load_matrices(to, row, false, at);
}
inline void load_matrices_transposed(uint32_t (&to)[4], const uint16_t* row, Place at = Place::current()) {
  emulate_load_matrices(to, row, true, at);
}

template <typename... P, typename... A>
Status launch(const char* name, void (*kernel)(P...), Dim3 grid, Dim3 block, size_t bytes, void* stream, A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
  TRY(cuda_emulated::usable(stream));
  const cuda_emulated::SharedMemory shared{bytes, bytes > kSharedAskedFrom};
  cuda_emulated::enqueue(
      stream, [=] { cuda_emulated::run_grid(name, grid, block, shared, [&] { kernel(static_cast<P>(args)...); }); });
  return {};
}

#else  // nvcc

using Dim3 = dim3;
#define SHARED_ARRAY(type, name, count) __shared__ type name[count]
__device__ __forceinline__ std::byte* shared_bytes() {
  extern __shared__ uint4 loralei_dynamic_shared[];
  return reinterpret_cast<std::byte*>(loralei_dynamic_shared);
}
DEVICE float f16_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
DEVICE uint16_t float_to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

DEVICE uint4 load_once(const uint4* from) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}
DEVICE uint32_t load_once(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.u32 %0, [%1];\n" : "=r"(word) : "l"(from));
  return word;
}
DEVICE uint16_t load_once(const uint16_t* from) {
  uint16_t half;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.u16 %0, [%1];\n" : "=h"(half) : "l"(from));
  return half;
}
DEVICE unsigned shared_address(const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }
DEVICE void copy_async(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(wanted ? 16 : 0)
               : "memory");
}
DEVICE void await_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }
DEVICE void load_matrices(uint32_t (&to)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE void load_matrices_transposed(uint32_t (&to)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <typename... P, typename... A>
Status launch(const char* name, void (*kernel)(P...), Dim3 grid, Dim3 block, size_t bytes, void* stream, A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
  (void)cudaGetLastError();  // of an earlier call: what is read below is this launch's
  cudaError_t code = cudaSuccess;
  if (bytes > kSharedAskedFrom) {
    code = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes));
  }
  if (code == cudaSuccess) {
    // clang-format off
    kernel<<<grid, block, bytes, static_cast<cudaStream_t>(stream)>>>(static_cast<P>(args)...);
    // clang-format on
    code = cudaGetLastError();
  }
  if (code == cudaSuccess) return {};
  return cuda_runtime::cuda_error(code, std::string("start the kernel ") + name);
}

#endif

DEVICE float bf16_to_float(uint16_t bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
DEVICE uint16_t float_to_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// e4m3 as tensor/codec.h has it. Bit arithmetic: every architecture computes the same.
DEVICE float fp8_to_float(uint8_t bits) {
  const unsigned magnitude = bits & 0x7Fu;
  // With the exponent's missing bit put in, an f16 of 2^-8 its size.
  const float size = f16_to_float(static_cast<uint16_t>((bits & 0x80u) << 8 | magnitude << 7)) * 256.0f;
  return magnitude == 0x7F ? __uint_as_float(0x7FC00000u) : size;
}
DEVICE uint8_t float_to_fp8(float x) {
  const unsigned bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448 or more
  if (magnitude < 0x3C800000u) {  // below 2^-6: the sum's last bit is 2^-9, the subnormals' step
    return static_cast<uint8_t>(sign | (__float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000u));
  }
  return static_cast<uint8_t>(sign | (magnitude - (120u << 23) + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20);
}

}  // namespace loralei::cuda
