// SPDX-License-Identifier: Apache-2.0
// Twins of a BlockReader for tests; one thread, as the reader they wrap.
// FaultyBlockReader: reads fail at random, leaving rubbish behind, and finish out
// of order. NewestFirstBlockReader: the read that was submitted last is done first.
// GatedBlockReader: reads are done in order, one at a time, each when a gate that
// outlives the reader lets it.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "sys/block_reader.h"

namespace loralei {

class FaultyBlockReader final : public BlockReader {
 public:
  // failure: the share of reads that fail, with a message that says "injected".
  FaultyBlockReader(std::unique_ptr<BlockReader> inner, uint64_t seed, double failure)
      : inner_(std::move(inner)), prng_(seed), failure_(failure) {}

  void submit(uint64_t tag, int64_t offset_bytes, std::span<std::byte> dest) override {
    if (prng_.uniform() < failure_) {
      std::memset(dest.data(), 0x5A, dest.size());
      failed_.push_back({tag, io_error("cannot read the disk: injected")});
      return;
    }
    inner_->submit(tag, offset_bytes, dest);
  }
  void wait(std::vector<BlockDone>& done) override {
    const size_t before = done.size();
    if (failed_.empty()) inner_->wait(done);
    for (BlockDone& block : failed_) done.push_back(std::move(block));
    failed_.clear();
    for (size_t i = done.size(); i > before + 1; --i) std::swap(done[i - 1], done[before + prng_.below(i - before)]);
  }
  int depth() const override { return inner_->depth(); }
  FileStamp stamp() const override { return inner_->stamp(); }
  const std::string& how() const override { return inner_->how(); }

 private:
  std::unique_ptr<BlockReader> inner_;
  Prng prng_;
  const double failure_;
  std::vector<BlockDone> failed_;
};

// Holds back what is submitted; who derives from it says which read is done next.
class HoldingBlockReader : public BlockReader {
 public:
  explicit HoldingBlockReader(std::unique_ptr<BlockReader> inner) : inner_(std::move(inner)) {}

  void submit(uint64_t tag, int64_t offset_bytes, std::span<std::byte> dest) override {
    held_.push_back({tag, offset_bytes, dest});
  }
  int depth() const override { return inner_->depth(); }
  FileStamp stamp() const override { return inner_->stamp(); }
  const std::string& how() const override { return inner_->how(); }

 protected:
  size_t held() const { return held_.size(); }
  void finish(size_t index, std::vector<BlockDone>& done) {
    const Read read = held_[index];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
    inner_->submit(read.tag, read.offset_bytes, read.dest);
    inner_->wait(done);
  }

 private:
  struct Read {
    uint64_t tag = 0;
    int64_t offset_bytes = 0;
    std::span<std::byte> dest;
  };
  std::unique_ptr<BlockReader> inner_;
  std::vector<Read> held_;
};

class NewestFirstBlockReader final : public HoldingBlockReader {
 public:
  using HoldingBlockReader::HoldingBlockReader;
  void wait(std::vector<BlockDone>& done) override {
    if (held() > 0) finish(held() - 1, done);
  }
};

// Set by the test's thread, waited for by the reader's.
struct ReadGate {
  std::atomic<int> allowed = 0;  // reads that may be done, counted from the first
  std::atomic<int> waits = 0;    // begun: when the n-th has, what the ones before it answered has been used
  void allow(int reads) {
    allowed = reads;
    allowed.notify_all();
  }
};

class GatedBlockReader final : public HoldingBlockReader {
 public:
  GatedBlockReader(std::unique_ptr<BlockReader> inner, ReadGate& gate)
      : HoldingBlockReader(std::move(inner)), gate_(gate) {}

  void wait(std::vector<BlockDone>& done) override {
    ++gate_.waits;
    if (held() == 0) return;
    for (int allowed = gate_.allowed; allowed <= read_; allowed = gate_.allowed) gate_.allowed.wait(allowed);
    ++read_;
    finish(0, done);
  }

 private:
  ReadGate& gate_;
  int read_ = 0;
};

}  // namespace loralei
