// SPDX-License-Identifier: Apache-2.0
#include "ops/probe.h"

#include <gtest/gtest.h>

#include "device/host/isa.h"
#include "ops/op_table.h"

namespace loralei {
namespace {

// Speeds differ between machines: only what must hold everywhere is tested.
TEST(Probe, MeasuresSomethingOnEveryMachine) {
  ThreadPool pool(2);
  const SteadyClock clock;
  const Result<double> read = probe_read_gb_s(pool, clock, {.buffer_bytes = 32 << 20, .rounds = 2});
  ASSERT_TRUE(read.ok());
  EXPECT_GT(*read, 0.0);
  EXPECT_GT(probe_f32_gflop_s(pool, clock, 1), 0.0);
  EXPECT_EQ(probe_int8_gop_s(pool, clock, 1) > 0.0, available_op_tables().size() > 1);
  for (const KindRate& rate : probe_f32_kinds(pool, clock, 1)) EXPECT_GT(rate.gop_s, 0.0) << rate.kind;
  for (int bits = 4; bits <= 8; ++bits)
    for (const KindRate& rate : probe_int8_kinds(pool, clock, 1, bits)) EXPECT_GT(rate.gop_s, 0.0) << rate.kind << bits;
  EXPECT_EQ(probe_bf16_gflop_s(pool, clock, 1) > 0.0, host_isa().avx512_bf16);
  EXPECT_EQ(probe_amx_int8_gop_s(pool, clock, 1) > 0.0, request_amx());
  EXPECT_GT(probe_wake_us(pool, clock), 0.0);
  EXPECT_EQ(probe_line_ns(pool, clock) > 0.0, pool.threads() > 1);
}

TEST(Probe, BitsMatterOnlyWhereBytesAreMultipliedInPairs) {
  const CpuIsa isa = host_isa();
  const bool pairs = isa.avx2 && !isa.avx_vnni && !isa.avx512_vnni;
  EXPECT_EQ(int8_bits(DType::kQ4_K), pairs ? 4 : 8);
  EXPECT_EQ(int8_bits(DType::kQ5_0), pairs ? 5 : 8);
  EXPECT_EQ(int8_bits(DType::kQ6_K), pairs ? 6 : 8);
  EXPECT_EQ(int8_bits(DType::kQ2_K), pairs ? 5 : 8);
  EXPECT_EQ(int8_bits(DType::kQ8_0), 8);
  EXPECT_EQ(int8_bits(DType::kIQ4_XS), 8);
  EXPECT_EQ(int8_bits(DType::kBF16), 8);
}

TEST(Probe, AnImpossibleBufferIsAnError) {
  ThreadPool pool(1);
  EXPECT_FALSE(probe_read_gb_s(pool, SteadyClock(), {.buffer_bytes = INT64_MAX / 2}).ok());
}

}  // namespace
}  // namespace loralei
