// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/uploader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei {
namespace {

class UploaderTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
    uploader_ = Uploader::create({.staging_bytes = kStaging}).value();
    memory_ = DeviceBuffer::allocate(kMemory).value();
  }
  // Parts of random lengths with gaps between them, and what the target must become.
  Upload made(uint64_t id, int64_t offset, int64_t bytes, std::vector<std::byte>& want) {
    auto data = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
    for (std::byte& byte : *data) byte = static_cast<std::byte>(1 + random_.below(255));
    want.assign(static_cast<size_t>(bytes), std::byte{0});
    Upload upload{.id = id, .to = memory_.data() + offset, .bytes = bytes, .parts = {}, .keeps = data};
    for (int64_t at = static_cast<int64_t>(random_.below(40)); at < bytes;) {
      const int64_t length = std::min<int64_t>(bytes - at, 1 + static_cast<int64_t>(random_.below(900)));
      upload.parts.push_back({data->data() + at, at, length});
      std::memcpy(want.data() + at, data->data() + at, static_cast<size_t>(length));
      at += length + static_cast<int64_t>(random_.below(40));
    }
    return upload;
  }
  // The same in pieces that end anywhere, some of no bytes.
  Upload in_pieces(uint64_t id, int64_t offset, int64_t bytes, StreamGate& gate, std::vector<std::byte>& want) {
    Upload upload = made(id, offset, bytes, want);
    for (uint64_t count = random_.below(12); count > 0; --count)
      upload.piece_ends.push_back(static_cast<int64_t>(random_.below(static_cast<uint64_t>(bytes) + 1)));
    std::sort(upload.piece_ends.begin(), upload.piece_ends.end());
    upload.piece_ends.push_back(bytes);
    upload.arrivals = std::make_shared<Arrivals>(static_cast<int32_t>(upload.piece_ends.size()));
    upload.gate = &gate;
    return upload;
  }
  std::vector<std::byte> on_device(int64_t offset, int64_t bytes) {
    CudaStream stream = CudaStream::create().value();
    PinnedBuffer back = PinnedBuffer::allocate(bytes).value();
    EXPECT_TRUE(copy_to_host(back.data(), memory_.data() + offset, bytes, stream).ok());
    EXPECT_TRUE(stream.synchronize().ok());
    return {back.data(), back.data() + bytes};
  }
  std::vector<UploadEnd> wait_for(size_t count) {
    std::vector<UploadEnd> ended;
    while (ended.size() < count) uploader_->wait(ended);
    return ended;
  }

  static constexpr int64_t kStaging = 4096, kMemory = 1 << 20;
  Prng random_{5};
  DeviceBuffer memory_;
  std::unique_ptr<Uploader> uploader_;
};

TEST_F(UploaderTest, RandomUploadsArriveWholeAndInOrder) {
  const char* given = std::getenv("UPLOADER_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 77;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  random_ = Prng(seed);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::vector<std::byte>> want(12);
    std::vector<int64_t> offsets;
    std::vector<std::weak_ptr<const void>> kept;
    int64_t next = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const auto bytes = static_cast<int64_t>(1 + random_.below(random_.below(3) == 0 ? 30000 : 1500));
      Upload upload = made(i, next, bytes, want[i]);
      kept.push_back(upload.keeps);
      offsets.push_back(next);
      next += bytes;
      uploader_->start(std::move(upload));
    }
    const std::vector<UploadEnd> ended = wait_for(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(ended[i].id, i);
      EXPECT_TRUE(ended[i].status.ok()) << ended[i].status.error().message;
      EXPECT_GT(ended[i].ns, 0);
      EXPECT_TRUE(kept[i].expired());
      ASSERT_EQ(on_device(offsets[i], static_cast<int64_t>(want[i].size())), want[i]) << "upload " << i;
    }
  }
}

// Chunks of several pieces, which several threads gather.
TEST_F(UploaderTest, LargeChunksAreGatheredInPieces) {
  uploader_ = Uploader::create({.staging_bytes = int64_t{4} << 20, .gather_threads = 4}).value();
  memory_ = DeviceBuffer::allocate(int64_t{8} << 20).value();
  constexpr int64_t kBytes[] = {(int64_t{3} << 20) + 777, int64_t{1} << 20, (int64_t{256} << 10) + 1, 5};
  std::vector<std::byte> want[std::size(kBytes)];
  int64_t at = 0;
  for (uint64_t id = 0; id < std::size(kBytes); ++id) {
    uploader_->start(made(id, at, kBytes[id], want[id]));
    at += kBytes[id];
  }
  const std::vector<UploadEnd> ended = wait_for(std::size(kBytes));
  at = 0;
  for (size_t i = 0; i < std::size(kBytes); ++i) {
    EXPECT_TRUE(ended[i].status.ok());
    ASSERT_EQ(on_device(at, kBytes[i]), want[i]) << "upload " << i;
    at += kBytes[i];
  }
}

// A stream that waits for a piece finds all of it, however the uploads are in pieces.
TEST_F(UploaderTest, PiecesAreThereWhenStreamsAndThreadsAreToldSo) {
  const char* given = std::getenv("UPLOADER_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 78;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  random_ = Prng(seed);
  const StreamGates gates = StreamGates::create(8).value();
  for (uint64_t round = 0; round < 60; ++round) {
    StreamGate& gate = gates[static_cast<int32_t>(round % 8)];
    gate.there.store(0);
    const auto bytes = static_cast<int64_t>(1 + random_.below(random_.below(3) == 0 ? 30000 : 1500));
    CudaStream reader = CudaStream::create().value();
    PinnedBuffer back = PinnedBuffer::allocate(bytes).value();
    std::vector<std::byte> want;
    Upload upload = in_pieces(round, 0, bytes, gate, want);
    const std::vector<int64_t> ends = upload.piece_ends;
    const std::shared_ptr<const Arrivals> arrivals = upload.arrivals;
    ASSERT_TRUE(fill_on_device(memory_.data(), 0xFF, bytes, reader).ok());
    ASSERT_TRUE(reader.synchronize().ok());
    for (size_t piece = 0; piece < ends.size(); ++piece) {
      const int64_t begin = piece == 0 ? 0 : ends[piece - 1];
      ASSERT_TRUE(reader.wait_for(gate, static_cast<uint32_t>(piece) + 1).ok());
      ASSERT_TRUE(copy_to_host(back.data() + begin, memory_.data() + begin, ends[piece] - begin, reader).ok());
    }
    uploader_->start(std::move(upload));
    if (random_.below(2) == 0) wait_for(1);
    ASSERT_TRUE(reader.synchronize().ok());
    ASSERT_EQ(std::memcmp(back.data(), want.data(), want.size()), 0) << "round " << round;
    ASSERT_TRUE(arrivals->wait(arrivals->total(), 60'000'000'000));
    ASSERT_TRUE(gate.has(static_cast<uint32_t>(ends.size())));
    std::vector<UploadEnd> ended;
    if (random_.below(2) == 0) uploader_->poll(ended);
  }
}

#ifdef LORALEI_CUDA_EMULATION
// Of an upload that fails midway pieces are there as far as it came, and the others
// never.
TEST_F(UploaderTest, AnUploadThatFailsMidwaySaysSoToThoseWhoWaitForPieces) {
  const StreamGates gates = StreamGates::create(1).value();
  std::vector<std::byte> want;
  Upload upload = made(1, 0, 3000, want);
  upload.piece_ends = {1000, 1777, 3000};
  const auto arrivals = std::make_shared<Arrivals>(3);
  upload.arrivals = arrivals;
  upload.gate = &gates[0];
  cuda_emulated::refuse_copies_of(777);
  uploader_->start(std::move(upload));
  EXPECT_FALSE(wait_for(1)[0].status.ok());
  cuda_emulated::refuse_copies_of(-1);
  EXPECT_EQ(arrivals->there(), 1);
  EXPECT_TRUE(gates[0].has(1) && !gates[0].has(2));
  ASSERT_TRUE(arrivals->failed());
  EXPECT_NE(arrivals->status().error().message.find("out of resources"), std::string::npos);
  want.resize(1000);
  EXPECT_EQ(on_device(0, 1000), want);
}

TEST_F(UploaderTest, NobodyWaitsForOneThatTakesItsTime) {
  std::atomic<int> calls{0};
  uploader_->on_end([&](const UploadEnd& end) {
    EXPECT_TRUE(end.status.ok());
    ++calls;
  });
  cuda_emulated::hold_event_waits(true);
  std::vector<std::byte> want[3];
  for (uint64_t id = 0; id < 3; ++id) {
    uploader_->start(made(id, static_cast<int64_t>(id) * 10000, 10000, want[id]));
  }
  std::vector<UploadEnd> ended;
  uploader_->poll(ended);
  EXPECT_TRUE(ended.empty());
  EXPECT_EQ(calls.load(), 0);
  cuda_emulated::hold_event_waits(false);
  for (const UploadEnd& end : wait_for(3)) EXPECT_TRUE(end.status.ok());
  EXPECT_EQ(calls.load(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(on_device(i * 10000, 10000), want[i]);
  uploader_->on_end({});
  uploader_->start(made(3, 0, 100, want[0]));
  wait_for(1);
  EXPECT_EQ(calls.load(), 3);
}

// The first or the last chunk of an upload is refused while copies of the one before are
// in flight: that one arrives, and so does the next.
TEST_F(UploaderTest, WhatIsRefusedEndsItsUploadAlone) {
  const int64_t bytes[] = {100, 2000, 777, 2000, 2 * kStaging + 777, 5000};
  constexpr size_t kCount = std::size(bytes);
  std::vector<std::byte> want[kCount];
  cuda_emulated::refuse_copies_of(777);
  cuda_emulated::hold_event_waits(true);  // until all are in the queue
  for (uint64_t id = 0; id < kCount; ++id) {
    uploader_->start(made(id, static_cast<int64_t>(id) * 10000, bytes[id], want[id]));
  }
  cuda_emulated::hold_event_waits(false);
  const std::vector<UploadEnd> ended = wait_for(kCount);
  cuda_emulated::refuse_copies_of(-1);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(ended[i].id, i);
    const bool refused = i == 2 || i == 4;
    ASSERT_EQ(ended[i].status.ok(), !refused) << "upload " << i;
    if (refused) {
      EXPECT_NE(ended[i].status.error().message.find("out of resources"), std::string::npos);
    } else {
      EXPECT_EQ(on_device(static_cast<int64_t>(i) * 10000, bytes[i]), want[i]);
    }
  }
}

TEST_F(UploaderTest, EndsCleanlyWithUploadsInFlight) {
  cuda_emulated::hold_event_waits(true);
  std::vector<std::byte> want;
  std::vector<std::weak_ptr<const void>> kept;
  for (uint64_t id = 0; id < 4; ++id) {
    Upload upload = made(id, static_cast<int64_t>(id) * 20000, 20000, want);
    kept.push_back(upload.keeps);
    uploader_->start(std::move(upload));
  }
  const int64_t allocations = cuda_emulated::allocations();
  cuda_emulated::hold_event_waits(false);
  uploader_.reset();
  for (const auto& keeps : kept) EXPECT_TRUE(keeps.expired());
  EXPECT_EQ(cuda_emulated::allocations(), allocations);
}
#endif

}  // namespace
}  // namespace loralei
