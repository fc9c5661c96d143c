// SPDX-License-Identifier: Apache-2.0
// FaultyBlockReader: the twin of a BlockReader for tests. Reads fail at random, leaving rubbish behind, and finish out
// of order. One thread, as the reader it wraps.
#pragma once

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

}  // namespace loralei
