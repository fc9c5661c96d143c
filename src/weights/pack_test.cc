// SPDX-License-Identifier: Apache-2.0
// Packed files: damaged, cut, stale, foreign or half made, they are noticed
// and made again.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/prng.h"
#include "base/units.h"
#include "sys/write_file.h"
#include "weights/disk_probe.h"
#include "weights/pack.h"
#include "weights/panel_decoder.h"
#include "weights/streaming_fixture.h"
#include "weights/weight_store.h"

namespace loralei {
namespace {

using namespace testing_support;

class Packing : public StreamingFixture {};

TEST_F(Packing, ADamagedFileIsNoticedAndMadeAgain) {
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  WeightOptions shrunk;
  shrunk.shrink = StreamShrink::kOn;
  StreamingOptions streaming;
  streaming.weight_bytes = (*resident)->resident_bytes() / 2 + 10 * kKiB;
  const int64_t size = static_cast<int64_t>(fs::file_size(pack(model, shrunk)));  // the smaller form
  Prng prng(7);
  int noticed = 0;
  for (int round = 0; round < 60; ++round) {
    WeightOptions packing;
    packing.shrink = round % 2 == 0 ? StreamShrink::kOff : StreamShrink::kOn;
    streaming.packed_path = pack(model, packing);
    std::fstream file(streaming.packed_path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<int64_t>(prng.below(static_cast<uint64_t>(size))));
    const auto at = file.tellg();
    const char old = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(old ^ 0x10));
    file.close();
    auto store = stream(model, streaming);
    Status status;
    if (store.ok()) {
      status = expect_pass(model, **store, **resident);
    } else {
      status = store.error();
    }
    ASSERT_FALSE(HasFailure()) << "byte " << at;
    noticed += !status.ok();  // what lies between the parts of the file harms nobody
  }
  EXPECT_GT(noticed, 30);
}

// Damage that no checksum sees, because it happens after the first reading.
TEST_F(Packing, ADecoderRefusesATileThatAsksForTooManyEscapes) {
  const BaseModelFile model = open("llama2");
  WeightOptions on;
  on.shrink = StreamShrink::kOn;
  const PosixFileSystem files;
  const auto file = files.open(pack(model, on)).value();
  const auto index = parse_packed(*file).value();
  const PackedMatrix& matrix = index.matrices.front();
  ASSERT_TRUE(matrix.shrunk);
  std::vector<std::byte> stored(static_cast<size_t>(matrix.bytes()));
  ASSERT_TRUE(file->read_exact(matrix.at, stored).ok());
  ThreadPool pool(2);
  auto decoder = PanelDecoder::create(matrix.tiles() * matrix.held_tile_bytes(), 4, &pool).value();
  for (const bool damaged : {false, true, false}) {
    std::vector<std::byte> bytes = stored;
    const auto second = bytes.begin() + matrix.tile_bytes();
    if (damaged) std::fill(second, second + matrix.tile_bytes(), std::byte{0xFF});
    decoder->begin_round();
    ASSERT_TRUE(decoder->fits(matrix, matrix.tiles()));
    decoder->add(matrix, 0, matrix.tiles(), bytes.data());
    EXPECT_FALSE(decoder->fits(matrix, 1));
    const Status status = decoder->decode();
    ASSERT_EQ(status.ok(), !damaged);
    if (damaged) {
      EXPECT_NE(status.error().message.find("row 16"), std::string::npos) << status.error().message;
    }
  }
}

TEST_F(Packing, AFileCutWhileItIsReadFailsThePassAndNotTheProcess) {
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  for (bool ring : {true, false}) {
    StreamingOptions streaming;
    streaming.packed_path = pack(model);
    streaming.weight_bytes = (*resident)->resident_bytes() / 2;
    streaming.reader.allow_ring = ring;
    auto store = stream(model, streaming);
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(expect_pass(model, **store, **resident).ok());
    fs::resize_file(streaming.packed_path, fs::file_size(streaming.packed_path) / 3);
    Status status;
    for (int pass = 0; pass < 3 && status.ok(); ++pass) status = expect_pass(model, **store, **resident);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("model.pack"), std::string::npos) << status.error().message;
    EXPECT_FALSE(expect_pass(model, **store, **resident).ok());
  }
}

TEST_F(Packing, PackingGoesOnWhereItWasInterrupted) {
  const std::string f16 = in_f16("llama2");
  for (const auto& [name, form] :
       std::initializer_list<std::pair<std::string, StreamShrink>>{{"llama2", StreamShrink::kOff},
                                                                   {"llama2", StreamShrink::kOn},
                                                                   {f16, StreamShrink::kOff},
                                                                   {f16, StreamShrink::kOn}}) {
    SCOPED_TRACE(name);
    const BaseModelFile model = open(name);
    WeightOptions options;
    options.shrink = form;
    const std::string path = pack(model, options);
    std::ifstream in(path, std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(in)), {});
    // As after a crash: the head says that half of the matrices are done,
    // the rest is rubbish.
    const PosixFileSystem files;
    auto index = parse_packed(*files.open(path).value()).value();
    fs::rename(path, path + ".part");
    index.done = std::ssize(index.matrices) / 2;
    {
      auto part = WriteFile::open(path + ".part").value();
      const std::string head = packed_head(index);
      ASSERT_TRUE(part.write(0, std::as_bytes(std::span(head))).ok());
      const auto from = static_cast<size_t>(index.matrices[static_cast<size_t>(index.done)].at);
      const std::string rubbish(whole.size() - from, 'x');
      ASSERT_TRUE(part.write(static_cast<int64_t>(from), std::as_bytes(std::span(rubbish))).ok());
    }
    int64_t packed_bytes = 0;
    int64_t first_done = -1;
    options.progress = [&](int64_t done, int64_t total) {
      if (first_done < 0) first_done = done;
      packed_bytes = total;
    };
    options.shrink = StreamShrink::kAuto;  // which goes on with whatever was begun
    ASSERT_TRUE(pack_model(model, options, path, log_).ok());
    EXPECT_GT(first_done, packed_bytes / 3);  // it did not begin at the beginning
    EXPECT_FALSE(fs::exists(path + ".part"));
    auto again = parse_packed(*files.open(path).value());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->checks, index.checks);
    EXPECT_EQ(again->shrink, form == StreamShrink::kOn);
    EXPECT_EQ(again->done, std::ssize(again->matrices));
    StreamingOptions streaming;
    streaming.packed_path = path;
    auto resident = WeightStore::load(model, ledger_, {});
    streaming.weight_bytes = (*resident)->resident_bytes() / 2 + 10 * kKiB;
    auto store = stream(model, streaming);
    ASSERT_TRUE(store.ok());
    EXPECT_TRUE(expect_pass(model, **store, **resident).ok());
  }
}

TEST_F(Packing, PackingStopsWhenToldToAndGoesOnLater) {
  const BaseModelFile model = open("llama2");
  const std::string path = pack(model);
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  fs::remove(path);
  for (const StreamShrink form : {StreamShrink::kOff, StreamShrink::kOn}) {
    WeightOptions options;
    options.shrink = form;
    options.pack_step_bytes = 1;  // every matrix
    options.threads = 2;
    std::stop_source stop;
    options.stop = stop.get_token();
    int calls = 0;
    int64_t stopped_at = 0, first_done = -1;
    options.progress = [&](int64_t done, int64_t total) {
      ++calls;
      if (first_done < 0) first_done = done;
      stopped_at = done;
      if (done > total / 2) stop.request_stop();
    };
    const Status stopped = pack_model(model, options, path, log_);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(fs::exists(path));
    EXPECT_TRUE(fs::exists(path + ".part"));
    const int64_t reached = stopped_at;
    EXPECT_EQ(pack_model(model, options, path, log_).error().code, ErrorCode::kUnavailable);  // at once
    EXPECT_EQ(stopped_at, reached);
    if (form == StreamShrink::kOn) {  // nor are numbers counted any more: nothing has its place
      const std::string other = (folder_ / "other.pack").string();
      EXPECT_FALSE(pack_model(model, options, other, log_).ok());
      EXPECT_FALSE(fs::exists(other + ".part"));  // there is nothing to go on from
    }
    options.stop = {};
    first_done = -1;
    ASSERT_TRUE(pack_model(model, options, path, log_).ok());
    EXPECT_GT(first_done, reached / 2);
    EXPECT_LT(first_done, stopped_at);
    ASSERT_TRUE(open_packed(path, model, options).ok());
    if (form == StreamShrink::kOff) {
      std::ifstream made(path, std::ios::binary);
      EXPECT_TRUE(whole == std::string((std::istreambuf_iterator<char>(made)), {}));
    }
    fs::remove(path);
  }
}

TEST_F(Packing, OneProcessPacksAtATime) {
  const BaseModelFile model = open("llama2");
  const std::string path = (folder_ / "model.pack").string();
  {
    auto other = WriteFile::open(path + ".part");
    ASSERT_TRUE(other.ok());
    const Status refused = pack_model(model, {}, path, log_);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(pack_model(model, {}, path, log_).ok());
  EXPECT_TRUE(open_packed(path, model, {}).ok());
}

TEST_F(Packing, AStaleOrForeignFileIsMadeAgain) {
  fs::copy(kModels + "llama2", folder_ / "model", fs::copy_options::recursive);
  const std::string model_path = (folder_ / "model").string();
  auto model = open_base_model(model_path).value();
  auto first = find_or_pack(model, {}, "", log_);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_TRUE(open_packed(first->path, model, {}).ok());
  log_.clear();
  ASSERT_TRUE(find_or_pack(model, {}, "", log_).ok());
  EXPECT_EQ(log_.text(), "");  // found
  WeightOptions quantised;
  quantised.quantise = DType::kQ8_0;
  const auto other = find_or_pack(model, quantised, "", log_);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->path, first->path);
  EXPECT_FALSE(open_packed(first->path, model, quantised).ok());
  fs::last_write_time(folder_ / "model" / "model.safetensors", fs::file_time_type::clock::now());
  const auto stale = find_or_pack(model, {}, "", log_);  // opened before
  ASSERT_FALSE(stale.ok());
  EXPECT_NE(stale.error().message.find("has changed since it was opened"), std::string::npos) << stale.error().message;
  model = open_base_model(model_path).value();
  EXPECT_FALSE(open_packed(first->path, model, {}).ok());
  log_.clear();
  ASSERT_TRUE(find_or_pack(model, {}, "", log_).ok());
  EXPECT_NE(log_.text().find("made again"), std::string::npos);
  EXPECT_TRUE(open_packed(first->path, model, {}).ok());
}

TEST_F(Packing, APackedFileIsNotLargerThanItsSourceAndAPage) {
  const BaseModelFile model = open("llama2");
  int64_t matrices = 0;
  for (const TensorInfo& info : model.index.tensors) matrices += info.shape.size() == 2 ? info.bytes : 0;
  const PosixFileSystem files;
  const auto index = parse_packed(*files.open(pack(model)).value()).value();
  EXPECT_LE(index.file_bytes - index.data_at, matrices + std::ssize(index.matrices) * kPackedAlign);
}

// The probe reads whole blocks, looked at or not, round the file's end, and says
// what it cannot read.
TEST_F(Packing, ProbesAFileOfAFewBlocks) {
  const std::string path = (folder_ / "blocks").string();
  std::ofstream(path, std::ios::binary) << std::string(static_cast<size_t>(3 * kMiB + 100), 'x');
  for (const ProbedBlocks blocks : {ProbedBlocks::kUntouched, ProbedBlocks::kLookedAt}) {
    const auto rate = probe_stream_gb_s(path, 0.02, 0.9, blocks);
    ASSERT_TRUE(rate.ok()) << rate.error().message;
    EXPECT_GT(*rate, 0);
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << "x";
  EXPECT_FALSE(probe_stream_gb_s(path, 0.02).ok());
  EXPECT_FALSE(probe_stream_gb_s((folder_ / "none").string(), 0.02).ok());
}

}  // namespace
}  // namespace loralei
