// SPDX-License-Identifier: Apache-2.0
#include "http/exchange.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

constexpr size_t kBufferBytes = 1024 * 1024;

ExchangeOptions options() {
  ExchangeOptions out;
  out.max_buffer_bytes = kBufferBytes;
  out.stopping = [] { return false; };
  out.wake = [] {};
  return out;
}

TEST(Exchange, AChunkLargerThanTheBufferIsNoFaultOfTheReader) {
  Exchange exchange(options());
  ASSERT_TRUE(exchange.start_stream(200, {}));
  const std::string large(2 * kBufferBytes, 'x');
  EXPECT_TRUE(exchange.write(large));
  Exchange::Out out = exchange.take();
  EXPECT_TRUE(exchange.write("small")) << "what drains is the large chunk";
  exchange.wrote(out.bytes.size());
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

}  // namespace
}  // namespace loralei
