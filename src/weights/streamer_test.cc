// SPDX-License-Identifier: Apache-2.0
// What the streamer reads, and what it does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "sys/faulty_block_reader.h"
#include "sys/no_threads.h"
#include "weights/streamer.h"
#include "weights/streaming_fixture.h"

namespace loralei {
namespace {

using namespace testing_support;

class StreamerPasses : public StreamingFixture {
 protected:
  void SetUp() override {
    StreamingFixture::SetUp();
    file_ = PosixFileSystem().open(pack(open("llama2"))).value();
    index_ = parse_packed(*file_).value();
    options_.window_bytes = 8 * 2 * kDirectAlign;
    options_.open = [this](std::span<std::byte> memory) {
      BlockReaderOptions options;
      options.memory = memory;
      return open_block_reader(file_->path(), options);
    };
  }
  // The matrix's first tile, `count` times.
  void add_panels(const std::string& name, int count) {
    const auto matrix = std::find_if(index_.matrices.begin(), index_.matrices.end(),
                                     [&](const PackedMatrix& one) { return one.name == name; });
    ASSERT_NE(matrix, index_.matrices.end());
    const auto number = static_cast<int32_t>(matrix - index_.matrices.begin());
    for (int i = 0; i < count; ++i) panels_.push_back({number, 0, 1});
  }
  void expect_tile(const std::byte* data, const StreamPanel& panel) {
    const PackedMatrix& matrix = index_.matrices[static_cast<size_t>(panel.matrix)];
    std::vector<std::byte> want(static_cast<size_t>(matrix.bytes_of_tile(0)));
    ASSERT_TRUE(file_->read_exact(matrix.at, want).ok());
    EXPECT_EQ(std::memcmp(data, want.data(), want.size()), 0);
  }

  std::unique_ptr<File> file_;
  PackedIndex index_;
  std::vector<StreamPanel> panels_;
  StreamerOptions options_;
};

// Reads are always under way here: the disk is what the consumer waits for.
TEST_F(StreamerPasses, AHeadThatIsPassedOverIsNotReadHoweverFarBehindTheDiskIs) {
  constexpr int kLayerPanels = 6, kHeadPanels = 60, kPasses = 5;
  add_panels("model.layers.0.self_attn.q_proj.weight", kLayerPanels);
  add_panels("lm_head.weight", kHeadPanels);
  ReadGate gate;
  options_.open = [&, open = options_.open](std::span<std::byte> memory) {
    auto reader = open(memory);
    if (!reader.ok()) return reader;
    return Result<std::unique_ptr<BlockReader>>(std::make_unique<GatedBlockReader>(std::move(reader).value(), gate));
  };
  auto streamer = Streamer::create(index_, panels_, options_);
  ASSERT_TRUE(streamer.ok()) << streamer.error().message;
  struct Opener {  // whatever fails, the reader's thread ends
    ReadGate& gate;
    ~Opener() { gate.allow(1 << 30); }
  } const opener{gate};
  int reads = 0;
  const auto pass = [&](int panels) {
    for (int number = 0; number < panels; ++number) {
      while (!(*streamer)->ready(number)) {
        gate.allow(++reads);
        while (gate.waits <= reads) std::this_thread::yield();  // it has been used, and others asked for
      }
      const auto data = (*streamer)->wait(number);
      ASSERT_TRUE(data.ok()) << data.error().message;
      expect_tile(*data, panels_[static_cast<size_t>(number)]);
      (*streamer)->release(number + 1);
    }
    (*streamer)->end_pass();
  };
  for (int i = 0; i < kPasses; ++i) pass(kLayerPanels);
  EXPECT_LE(reads, kPasses * (kLayerPanels + BlockReaderOptions{}.depth)) << "what was under way, and no more";
  const int before = reads;
  pass(kLayerPanels + kHeadPanels);
  EXPECT_GE(reads - before, kHeadPanels);
}

TEST_F(StreamerPasses, WithoutAThreadItIsASentence) {
  add_panels("lm_head.weight", 2);
  const NoThreads none;
  const auto streamer = Streamer::create(index_, panels_, options_);
  ASSERT_FALSE(streamer.ok());
  EXPECT_EQ(streamer.error().code, ErrorCode::kOverloaded);
  EXPECT_NE(streamer.error().message.find("thread"), std::string::npos) << streamer.error().message;
}

}  // namespace
}  // namespace loralei
