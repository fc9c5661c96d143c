// SPDX-License-Identifier: Apache-2.0
#include "http/exchange.h"

#include <gtest/gtest.h>

#include "base/fixed_byte_budget.h"

namespace loralei {
namespace {

constexpr size_t kBufferBytes = 1024 * 1024;

ExchangeOptions options() {
  ExchangeOptions out;
  out.max_buffer_bytes = kBufferBytes;
  out.stopping = [] { return false; };
  out.wake = [] {};
  out.memory = std::make_shared<FixedByteBudget>(int64_t{1} << 30);
  return out;
}

TEST(Exchange, AChunkLargerThanTheBufferIsNoFaultOfTheReader) {
  Exchange exchange(options());
  ASSERT_TRUE(exchange.start_stream(200, {}));
  const std::string large(2 * kBufferBytes, 'x');
  EXPECT_TRUE(exchange.write(large));
  Exchange::Out out = exchange.take();
  EXPECT_TRUE(exchange.write("small")) << "what drains is the large chunk";
  exchange.wrote(out.size());
  out = exchange.take();
  EXPECT_TRUE(exchange.write(large));
  EXPECT_TRUE(exchange.write("small"));
  EXPECT_FALSE(exchange.closed());
}

TEST(Exchange, AReaderThatTakesNothingIsCut) {
  for (const size_t first : {size_t{1}, 2 * kBufferBytes}) {
    Exchange exchange(options());
    ASSERT_TRUE(exchange.start_stream(200, {}));
    ASSERT_TRUE(exchange.write(std::string(first, 'x')));
    const std::string chunk(16 * 1024, 'x');
    size_t written = 0;
    while (exchange.write(chunk)) {
      written += chunk.size();
      ASSERT_LE(written, 2 * kBufferBytes);
    }
    EXPECT_GE(written, kBufferBytes);
    EXPECT_TRUE(exchange.closed());
    EXPECT_TRUE(exchange.take().overflow);
  }
}

TEST(Exchange, WhatIsKeptForAReaderIsBounded) {
  Exchange exchange(options());
  ASSERT_TRUE(exchange.start_stream(200, {}));
  const std::string large(3 * kBufferBytes, 'x');
  while (exchange.write(large)) {
  }
  EXPECT_LE(exchange.take().bytes.size(), 3 * large.size());
}

// As the connection does it.
void drain(Exchange& exchange) {
  for (;;) {
    const Exchange::Out out = exchange.take();
    if (out.on_room) out.on_room();
    if (out.size() == 0) return;
    exchange.wrote(out.size());
  }
}

TEST(Exchange, WhatWaitsIsTakenFromTheMemoryAndGivenBack) {
  auto memory = std::make_shared<FixedByteBudget>(1024 * 1024);
  ExchangeOptions with = options();
  with.memory = memory;
  Exchange exchange(std::move(with));
  ASSERT_TRUE(exchange.start_stream(200, {}));
  EXPECT_TRUE(exchange.wants_more());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(exchange.write(std::string(200, 'x')));
    drain(exchange);
  }
  EXPECT_EQ(memory->taken_bytes(), 0) << "little of it needs nothing";
  size_t waits = 0;
  while (exchange.wants_more()) {
    ASSERT_TRUE(exchange.write(std::string(1000, 'x')));
    waits += 1000;
    const auto taken = static_cast<size_t>(memory->taken_bytes());
    ASSERT_LE(2 * waits, taken + kAnswerBytes);
  }
  EXPECT_LE(waits, 2 * kEnoughBytes);
  int told = 0;
  exchange.on_room([&] { ++told; });
  EXPECT_EQ(told, 0);
  drain(exchange);
  EXPECT_TRUE(exchange.wants_more());
  EXPECT_EQ(memory->taken_bytes(), 0);
  drain(exchange);
  EXPECT_EQ(told, 1);
}

TEST(Exchange, WithoutRoomAStreamGoesOnAsItIsRead) {
  auto memory = std::make_shared<FixedByteBudget>(0);
  ExchangeOptions with = options();
  with.memory = memory;
  Exchange exchange(std::move(with));
  ASSERT_TRUE(exchange.start_stream(200, {}));
  for (int i = 0; i < 100; ++i) {
    int chunks = 0;
    for (; exchange.wants_more(); ++chunks) ASSERT_TRUE(exchange.write(std::string(3000, 'x')));
    ASSERT_GT(chunks, 0);
    ASSERT_LE(chunks, 4);
    drain(exchange);
  }
  EXPECT_FALSE(exchange.closed());
  size_t written = 0;
  while (exchange.write(std::string(3000, 'x'))) written += 3000;
  EXPECT_LE(written, kAnswerBytes + kUncountedBytes) << "who writes on without asking is cut";
}

TEST(Exchange, WhatWaitsForAnEndIsDroppedWithIt) {
  for (const bool finishes : {true, false}) {
    Exchange exchange(options());
    ASSERT_TRUE(exchange.start_stream(200, {}));
    const auto owned = std::make_shared<int>();
    exchange.on_room([owned] {});
    exchange.on_closed([owned] {});
    EXPECT_EQ(owned.use_count(), 3);
    if (finishes)
      exchange.finish();
    else
      exchange.close();
    EXPECT_EQ(owned.use_count(), 1);
    exchange.on_room([owned] {});
    EXPECT_EQ(owned.use_count(), 1);
  }
}

}  // namespace
}  // namespace loralei
