// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "device/cuda/copy_engine.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/stream_gate.h"

namespace loralei {
namespace {

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  }
};

TEST(CudaDiscovery, ListsDevicesOrSaysWhyNot) {
  const CudaDevices devices = cuda_devices();
  EXPECT_EQ(devices.list.empty(), !devices.reason.empty());
  for (const CudaDeviceInfo& info : devices.list) {
    EXPECT_FALSE(info.name.empty());
    EXPECT_GT(info.total_bytes, 0);
    EXPECT_GT(info.multiprocessors, 0);
  }
  EXPECT_FALSE(set_cuda_device(999).ok());
}

TEST_F(CudaDevice, CopiesThereOnItAndBack) {
  CudaStream stream = CudaStream::create().value();
  PinnedBuffer from = PinnedBuffer::allocate(1000).value(), to = PinnedBuffer::allocate(1000).value();
  DeviceBuffer a = DeviceBuffer::allocate(1000).value(), b = DeviceBuffer::allocate(1000).value();
  for (int i = 0; i < 1000; ++i) from.data()[i] = static_cast<std::byte>(i % 251);
  ASSERT_TRUE(copy_to_device(a.data(), from.data(), 1000, stream).ok());
  ASSERT_TRUE(copy_on_device(b.data(), a.data(), 1000, stream).ok());
  ASSERT_TRUE(fill_on_device(b.data(), 7, 10, stream).ok());
  ASSERT_TRUE(copy_to_host(to.data(), b.data(), 1000, stream).ok());
  ASSERT_TRUE(stream.synchronize().ok());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(to.data()[i], i < 10 ? std::byte{7} : from.data()[i]);
  DeviceBuffer moved = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(moved.size_bytes(), 1000);
  EXPECT_EQ(DeviceBuffer::allocate(0).value().data(), nullptr);
  EXPECT_FALSE(DeviceBuffer::allocate(int64_t{1} << 50).ok());
}

TEST_F(CudaDevice, AStreamWaitsForAnEventOfAnother) {
  CudaStream first = CudaStream::create().value(), second = CudaStream::create().value();
  CudaEvent event = CudaEvent::create().value();
  DeviceBuffer memory = DeviceBuffer::allocate(64).value();
  PinnedBuffer host = PinnedBuffer::allocate(64).value();
  EXPECT_TRUE(event.done().value());  // never recorded
  ASSERT_TRUE(fill_on_device(memory.data(), 5, 64, first).ok());
  ASSERT_TRUE(first.record(event).ok());
  ASSERT_TRUE(second.wait_for(event).ok());
  ASSERT_TRUE(copy_to_host(host.data(), memory.data(), 64, second).ok());
  ASSERT_TRUE(second.synchronize().ok());
  EXPECT_TRUE(event.done().value());
  for (std::byte byte : host.bytes()) EXPECT_EQ(byte, std::byte{5});
}

// A stream goes on when another one has brought what it waits for, and no sooner.
TEST_F(CudaDevice, AStreamWaitsForANumberThatAnotherWrites) {
  CudaStream first = CudaStream::create().value(), second = CudaStream::create().value();
  const StreamGates gates = StreamGates::create(2).value();
  StreamGate& gate = gates[1];
  DeviceBuffer memory = DeviceBuffer::allocate(64).value();
  PinnedBuffer host = PinnedBuffer::allocate(64).value();
  CudaEvent before = CudaEvent::create().value(), behind = CudaEvent::create().value();
  std::memset(host.data(), 0, 64);
  ASSERT_TRUE(second.record(before).ok());
  ASSERT_TRUE(second.wait_for(gate, 2).ok());
  ASSERT_TRUE(copy_to_host(host.data(), memory.data(), 64, second).ok());
  ASSERT_TRUE(second.record(behind).ok());
  while (!before.done().value()) {
  }
  for (int i = 0; i < 20; ++i) ASSERT_FALSE(behind.done().value());
  for (uint32_t number = 1; number <= 2; ++number) {
    EXPECT_FALSE(gate.has(number));
    EXPECT_FALSE(behind.done().value());
    ASSERT_TRUE(fill_on_device(memory.data(), static_cast<int>(number) * 5, 64, first).ok());
    ASSERT_TRUE(first.write(gate.there, number).ok());
    ASSERT_TRUE(first.synchronize().ok());
    EXPECT_TRUE(gate.has(number));
  }
  ASSERT_TRUE(second.synchronize().ok());
  for (std::byte byte : host.bytes()) EXPECT_EQ(byte, std::byte{10});
  EXPECT_EQ(gates[0].there.load(), 0u);
}

// The host lets a stream go on that waits for what will not come, whatever is written
// meanwhile.
TEST_F(CudaDevice, AGateThatEndsLetsEveryWaitPass) {
  CudaStream writer = CudaStream::create().value(), waiter = CudaStream::create().value();
  const StreamGates gates = StreamGates::create(1).value();
  CudaEvent behind = CudaEvent::create().value();
  ASSERT_TRUE(waiter.wait_for(gates[0], 3).ok());
  ASSERT_TRUE(waiter.wait_for(gates[0], 1000).ok());
  ASSERT_TRUE(waiter.record(behind).ok());
  EXPECT_FALSE(behind.done().value());
  gates[0].end();
  ASSERT_TRUE(writer.write(gates[0].there, 1).ok());
  ASSERT_TRUE(writer.synchronize().ok());
  ASSERT_TRUE(waiter.synchronize().ok());
  EXPECT_TRUE(gates[0].is_ended() && gates[0].has(1) && !gates[0].has(2));
}

TEST_F(CudaDevice, AGraphRunsWhatWasCapturedAgain) {
  CudaStream stream = CudaStream::create().value();
  DeviceBuffer a = DeviceBuffer::allocate(16).value(), b = DeviceBuffer::allocate(16).value();
  PinnedBuffer host = PinnedBuffer::allocate(16).value();
  CudaGraph graph;
  for (int round = 0; round < 2; ++round) {  // the second capture updates the first
    ASSERT_TRUE(graph.begin_capture(stream).ok());
    ASSERT_TRUE(copy_on_device(b.data(), a.data(), 16, stream).ok());
    ASSERT_TRUE(copy_to_host(host.data(), b.data(), 16, stream).ok());
    ASSERT_TRUE(graph.end_capture(stream).ok());
    for (int value = 1; value < 4; ++value) {
      ASSERT_TRUE(fill_on_device(a.data(), value, 16, stream).ok());
      ASSERT_TRUE(graph.launch(stream).ok());
      ASSERT_TRUE(stream.synchronize().ok());
      EXPECT_EQ(host.data()[15], static_cast<std::byte>(value));
    }
  }
}

TEST_F(CudaDevice, TheCopyEngineBoundsTheBytesInFlightAndKeepsTheOrder) {
  CopyEngine engine = CopyEngine::create({.bytes_in_flight_max = 1000, .copies_in_flight_max = 8}).value();
  PinnedBuffer host = PinnedBuffer::allocate(100 * 300).value(), back = PinnedBuffer::allocate(100 * 300).value();
  DeviceBuffer memory = DeviceBuffer::allocate(100 * 300).value();
  for (int64_t i = 0; i < host.size_bytes(); ++i) host.data()[i] = static_cast<std::byte>(i * 7 % 253);
  std::vector<uint64_t> order;
  uint64_t done[3];
  int refused = 0;
  for (uint64_t tag = 0; tag < 100;) {
    const auto at = static_cast<int64_t>(tag) * 300;
    const bool queued =
        engine.submit({memory.data() + at, host.data() + at, 300, CopyDirection::kToDevice, tag}).value();
    ASSERT_LE(engine.bytes_in_flight(), 1000);
    if (queued) {
      ++tag;
      continue;
    }
    ++refused;
    ASSERT_TRUE(engine.copies_in_flight() == 3 || engine.copies_in_flight() == 8);
    const size_t reported = engine.poll(done).value();
    order.insert(order.end(), done, done + reported);
  }
  EXPECT_GT(refused, 0);
  CudaStream stream = CudaStream::create().value();
  ASSERT_TRUE(engine.order_after_last(stream).ok());
  ASSERT_TRUE(copy_to_host(back.data(), memory.data(), back.size_bytes(), stream).ok());
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_EQ(std::memcmp(back.data(), host.data(), 100 * 300), 0);
  ASSERT_TRUE(engine.wait_all().ok());
  while (engine.copies_in_flight() > 0) {
    const size_t reported = engine.poll(done).value();
    order.insert(order.end(), done, done + reported);
  }
  ASSERT_EQ(order.size(), 100u);
  for (uint64_t i = 0; i < 100; ++i) ASSERT_EQ(order[i], i);
  EXPECT_EQ(engine.bytes_in_flight(), 0);
}

TEST_F(CudaDevice, ACopyLargerThanTheBoundGoesAlone) {
  CopyEngine engine = CopyEngine::create({.bytes_in_flight_max = 100, .copies_in_flight_max = 2}).value();
  PinnedBuffer host = PinnedBuffer::allocate(500).value();
  DeviceBuffer memory = DeviceBuffer::allocate(500).value();
  EXPECT_TRUE(engine.submit({memory.data(), host.data(), 500, CopyDirection::kToDevice, 1}).value());
  EXPECT_FALSE(engine.submit({memory.data(), host.data(), 1, CopyDirection::kToDevice, 2}).value());
  ASSERT_TRUE(engine.wait_all().ok());
  uint64_t tag = 0;
  EXPECT_EQ(engine.poll({&tag, 1}).value(), 1u);
  EXPECT_EQ(tag, 1u);
}

}  // namespace
}  // namespace loralei
