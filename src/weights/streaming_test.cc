// SPDX-License-Identifier: Apache-2.0
// Streamed weights are the resident ones, byte for byte, whatever the budget, the
// policy and the disk do.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/prng.h"
#include "base/units.h"
#include "sys/faulty_block_reader.h"
#include "tensor/tile_layout.h"
#include "weights/pack.h"
#include "weights/streaming_fixture.h"
#include "weights/weight_store.h"

namespace loralei {
namespace {

using namespace testing_support;

class Streaming : public StreamingFixture {};

TEST_F(Streaming, EveryBudgetAndPolicyGivesTheResidentBytes) {
  int all_streamed = 0;
  for (const std::string& name :
       {std::string("llama2"), in_f16("llama2"), std::string("qwen2"), std::string("qwen3"), std::string("dtype-bf16"),
        std::string("llama-bias"), std::string("gguf-llama-q4_0.gguf"), std::string("gguf-llama-q4_k_m.gguf"),
        std::string("gguf-qwen3-q8_0.gguf")}) {
    const BaseModelFile model = open(name);
    auto resident = WeightStore::load(model, ledger_, {});
    ASSERT_TRUE(resident.ok());
    StreamingOptions streaming;
    streaming.packed_path = pack(model);
    const int64_t whole = (*resident)->resident_bytes();
    int streamed = 0;
    for (int part = 1; part <= 10; ++part) {
      for (ResidencyPolicy policy :
           {ResidencyPolicy::kBalanced, ResidencyPolicy::kFlex, ResidencyPolicy::kLayerOrder}) {
        streaming.weight_bytes = whole * part / 20 + 20 * kKiB;  // tiny panels are read with a page before and after
        streaming.residency.policy = policy;
        streaming.locked_round_bytes = part % 2;  // one panel a round, or as usual
        auto store = stream(model, streaming);
        if (!store.ok()) {
          EXPECT_EQ(store.error().code, ErrorCode::kTooLarge) << store.error().message;
          continue;
        }
        SCOPED_TRACE(std::string(name) + " " + residency_policy_name(policy) + " " + std::to_string(part));
        streamed += (*store)->streams();
        EXPECT_LE((*store)->resident_bytes(), streaming.weight_bytes);
        EXPECT_EQ((*store)->fingerprint(), (*resident)->fingerprint());
        for (int pass = 0; pass < 3; ++pass) ASSERT_TRUE(expect_pass(model, **store, **resident, pass != 1).ok());
      }
    }
    all_streamed += streamed;
  }
  EXPECT_GT(all_streamed, 60);
}

TEST_F(Streaming, ShrunkWeightsAreTheResidentBytesOnceDecoded) {
  WeightOptions shrunk;
  shrunk.shrink = StreamShrink::kOn;
  shrunk.threads = 2;
  ThreadPool pool(2);
  for (const std::string& name :
       {std::string("llama2"), in_f16("llama2"), std::string("llama-gqa"), std::string("qwen2"), std::string("qwen3"),
        std::string("dtype-bf16"), std::string("dtype-f16")}) {
    const BaseModelFile model = open(name);
    auto resident = WeightStore::load(model, ledger_, {});
    ASSERT_TRUE(resident.ok());
    StreamingOptions streaming;
    streaming.packed_path = pack(model, shrunk);
    const int64_t whole = (*resident)->resident_bytes();
    int streamed = 0;
    for (int part = 1; part <= 10; ++part) {
      for (ResidencyPolicy policy :
           {ResidencyPolicy::kBalanced, ResidencyPolicy::kFlex, ResidencyPolicy::kLayerOrder}) {
        streaming.weight_bytes = whole * part / 20 + 30 * kKiB;
        streaming.residency.policy = policy;
        streaming.pool = part % 2 == 0 ? &pool : nullptr;
        auto store = stream(model, streaming, shrunk);
        if (!store.ok()) {
          EXPECT_EQ(store.error().code, ErrorCode::kTooLarge) << store.error().message;
          continue;
        }
        SCOPED_TRACE(std::string(name) + " " + residency_policy_name(policy) + " " + std::to_string(part));
        EXPECT_LE((*store)->resident_bytes(), streaming.weight_bytes);
        EXPECT_EQ((*store)->fingerprint(), (*resident)->fingerprint());
        for (int pass = 0; pass < 3; ++pass) ASSERT_TRUE(expect_pass(model, **store, **resident, pass != 1).ok());
        if (!(*store)->streams()) continue;
        ++streamed;
        const StreamShape shape = (*store)->stream_shape();
        EXPECT_LT(shape.streamed_bytes * 20, shape.decoded_bytes * 19);
        EXPECT_NE((*store)->describe().find("read shrunk"), std::string::npos);
      }
    }
    EXPECT_GT(streamed, 0) << name;
  }
}

TEST_F(Streaming, AShrunkFileIsSmallerAndIsMadeAgainWhenTheOtherFormIsAskedFor) {
  const BaseModelFile model = open("llama2");
  const std::string path = (folder_ / "model.pack").string();
  WeightOptions on, off;
  on.shrink = StreamShrink::kOn;
  off.shrink = StreamShrink::kOff;
  const PosixFileSystem files;
  const auto data_bytes = [&](const WeightOptions& options) {
    const auto index = parse_packed(*files.open(pack(model, options)).value()).value();
    int64_t bytes = 0;
    for (const PackedMatrix& matrix : index.matrices) bytes += matrix.bytes();
    return bytes;
  };
  const int64_t plain = data_bytes(off);
  EXPECT_TRUE(open_packed(path, model, {}).ok() && open_packed(path, model, off).ok());
  const auto refused = open_packed(path, model, on);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--stream-shrink"), std::string::npos);
  const int64_t shrunk = data_bytes(on);
  EXPECT_LT(shrunk * 5, plain * 4);
  EXPECT_TRUE(open_packed(path, model, {}).ok() && open_packed(path, model, on).ok());
  EXPECT_FALSE(open_packed(path, model, off).ok());
  // What cannot be shrunk is the same in either form.
  const BaseModelFile wide = open("dtype-f32");
  pack(wide, on);
  EXPECT_TRUE(open_packed(path, wide, off).ok() && open_packed(path, wide, on).ok());
  // Too little to measure a disk with: auto leaves it as it is.
  EXPECT_EQ(data_bytes({}), plain);
}

// A model trained in bf16 and stored in f16 is, resident and packed, the model it was
// made of: matrix by matrix.
TEST_F(Streaming, F16MatricesOfBf16NumbersAreHeldAndPackedAsThose) {
  const PosixFileSystem files;
  const auto packed = [&](const BaseModelFile& model, const WeightOptions& options) {
    const auto file = files.open(pack(model, options)).value();
    std::map<std::string, std::pair<DType, std::vector<std::byte>>> matrices;
    for (const PackedMatrix& matrix : parse_packed(*file).value().matrices) {
      auto& [dtype, bytes] = matrices[matrix.name];
      dtype = matrix.dtype;
      bytes.resize(static_cast<size_t>(matrix.bytes()));
      EXPECT_TRUE(file->read_exact(matrix.at, bytes).ok());
    }
    return matrices;
  };
  const BaseModelFile bf16 = open("llama2");
  const std::string path = in_f16("llama2");
  const std::string head = "lm_head.weight";
  for (const bool other : {false, true}) {
    if (other) change_last_number(path, head, 1);  // which bf16 does not have
    for (const StreamShrink form : {StreamShrink::kOff, StreamShrink::kOn}) {
      WeightOptions options;
      options.shrink = form;
      options.threads = 2;
      const BaseModelFile f16 = open(path);
      auto want = packed(bf16, options), got = packed(f16, options);
      ASSERT_EQ(got.size(), want.size());
      const auto resident = WeightStore::load(f16, ledger_, options);
      ASSERT_TRUE(resident.ok());
      for (const auto& [name, matrix] : got) {
        SCOPED_TRACE(name);
        const bool differs = other && name == head;
        EXPECT_EQ(matrix.first, differs ? DType::kF16 : DType::kBF16);
        EXPECT_EQ((*resident)->view((*resident)->find(name)).dtype, matrix.first);
        EXPECT_EQ(matrix.second == want[name].second, !differs);
      }
      const std::string count = std::to_string(std::ssize(got) - (other ? 1 : 0));
      EXPECT_EQ((*resident)->describe().find(count + " matrices stored in f16"), 0);
    }
  }
}

TEST_F(Streaming, RowsAreLookedUpAsTheyStand) {
  // qwen2's head is its embedding: where it is shrunk, single rows come
  // from shrunk tiles.
  for (const auto& [name, shrink] :
       std::initializer_list<std::pair<std::string, StreamShrink>>{{"llama2", StreamShrink::kOff},
                                                                   {in_f16("qwen2"), StreamShrink::kOff},
                                                                   {in_f16("qwen2"), StreamShrink::kOn},
                                                                   {"qwen2", StreamShrink::kOff},
                                                                   {"qwen2", StreamShrink::kOn},
                                                                   {"gguf-llama-q4_0.gguf", StreamShrink::kOff},
                                                                   {"gguf-qwen3-q8_0.gguf", StreamShrink::kOff}}) {
    const BaseModelFile model = open(name);
    auto resident = WeightStore::load(model, ledger_, {});
    ASSERT_TRUE(resident.ok());
    WeightOptions packing;
    packing.shrink = shrink;
    StreamingOptions streaming;
    streaming.packed_path = pack(model, packing);
    streaming.weight_bytes = (*resident)->resident_bytes() / 2 + 20 * kKiB;
    auto store = stream(model, streaming);
    ASSERT_TRUE(store.ok()) << store.error().message;
    const TensorSlot embed = (*store)->find("model.embed_tokens.weight");
    const WeightView& whole = (*resident)->view(embed);
    std::vector<TokenId> tokens = {0, 5, whole.rows - 1, 5, 17};
    auto rows = (*store)->look_up(embed, tokens);
    ASSERT_TRUE(rows.ok());
    const std::vector<std::byte> all = resident_bytes(whole);
    const int64_t bytes = row_bytes(whole.dtype, whole.cols);
    std::vector<std::byte> want(static_cast<size_t>(bytes)), got(static_cast<size_t>(bytes));
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (whole.layout == LayoutId::kTile16) {
        unpack_tile_row(whole.dtype, all.data() + tokens[i] / kRowTile * kRowTile * bytes, tokens[i] % kRowTile,
                        whole.cols, want.data());
      } else {
        std::memcpy(want.data(), all.data() + tokens[i] * bytes, want.size());
      }
      const WeightView& view = rows->view;
      if (view.layout == LayoutId::kTile16) continue;  // the embedding is locked
      std::memcpy(got.data(), view.panels[0].data + rows->tokens[i] * bytes, got.size());
      EXPECT_TRUE(got == want) << name << " token " << tokens[i];
    }
  }
}

TEST_F(Streaming, EveryWayOfReadingGivesTheSame) {
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  StreamingOptions streaming;
  streaming.packed_path = pack(model);
  streaming.weight_bytes = (*resident)->resident_bytes() / 2;
  for (bool ring : {true, false}) {
    for (bool direct : {true, false}) {
      streaming.reader.allow_ring = ring;
      streaming.reader.allow_direct = direct;
      auto store = stream(model, streaming);
      ASSERT_TRUE(store.ok()) << store.error().message;
      const std::string text = (*store)->describe();
      EXPECT_TRUE(ring || text.find("threads") != std::string::npos) << text;
      EXPECT_TRUE(direct || text.find("through the page cache") != std::string::npos) << text;
      for (int pass = 0; pass < 3; ++pass) ASSERT_TRUE(expect_pass(model, **store, **resident).ok());
    }
  }
}

// Ten thousand passes with failing, short and reordered reads: no wrong byte, no hang,
// and the pass after a failed one begins anew.
TEST_F(Streaming, FailingReadsEndTheirPassAndNothingElse) {
  const uint64_t seed = 41;
  Prng prng(seed);
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  WeightOptions plain, shrunk;
  plain.shrink = StreamShrink::kOff;
  shrunk.shrink = StreamShrink::kOn;
  StreamingOptions streaming;
  streaming.open_reader = [&](const std::string& path, const BlockReaderOptions& options) {
    auto reader = open_block_reader(path, options);
    if (!reader.ok()) return reader;
    return Result<std::unique_ptr<BlockReader>>(
        std::make_unique<FaultyBlockReader>(std::move(reader).value(), prng.below(1u << 30), 0.01));
  };
  int failed = 0, finished = 0;
  for (int round = 0; round < 20; ++round) {
    streaming.packed_path = pack(model, round % 2 == 0 ? plain : shrunk);
    streaming.weight_bytes = (*resident)->resident_bytes() * static_cast<int64_t>(45 + prng.below(45)) / 100;
    auto store = stream(model, streaming);
    ASSERT_TRUE(store.ok()) << store.error().message;
    for (int pass = 0; pass < 500; ++pass) {
      const Status status = expect_pass(model, **store, **resident, prng.below(4) != 0);
      ASSERT_FALSE(HasFailure()) << "seed " << seed << " round " << round << " pass " << pass;
      ++(status.ok() ? finished : failed);
      EXPECT_TRUE(status.ok() || status.error().message.find("injected") != std::string::npos);
    }
  }
  EXPECT_GT(failed, 100);
  EXPECT_GT(finished, 1000);
}

// Locked rows wait for nothing; streamed ones that are there go first, so that their
// memory is free again.
TEST_F(Streaming, LockedPortionsFillTheTimeUntilAPanelIsThere) {
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  ReadGate gate;
  StreamingOptions streaming;
  streaming.packed_path = pack(model);
  streaming.weight_bytes = (*resident)->resident_bytes() - 12 * kKiB;  // the embedding and a little
  streaming.locked_round_bytes = 1;
  streaming.open_reader = [&](const std::string& path, const BlockReaderOptions& options) {
    auto reader = open_block_reader(path, options);
    if (!reader.ok()) return reader;
    return Result<std::unique_ptr<BlockReader>>(std::make_unique<GatedBlockReader>(std::move(reader).value(), gate));
  };
  auto store = stream(model, streaming);
  ASSERT_TRUE(store.ok()) << store.error().message;
  struct Opener {  // whatever fails, the reader's thread ends
    ReadGate& gate;
    ~Opener() { gate.allow(1 << 30); }
  } const opener{gate};
  // Of this group only rows of q are streamed.
  const auto slots = pass_order(model, **store)[0];
  const auto first_rows = [](const WeightUse& use) {  // by matrix; -1: nothing in this round
    std::array<int, 3> rows = {-1, -1, -1};
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!use.view(i).panels.empty()) rows[i] = use.view(i).panels[0].row_begin;
    }
    return rows;
  };
  {
    WeightPass pass(**store);
    WeightUse use(**store, slots);
    ASSERT_TRUE(use.next().value());
    ASSERT_EQ(first_rows(use), (std::array{0, -1, -1})) << "the first portion of what is locked";
    // The window holds more than one panel, so a second read is waited for once the
    // first panel is there.
    gate.allow(1);
    while (gate.waits < 2) std::this_thread::yield();
    ASSERT_TRUE(use.next().value());
    ASSERT_GT(first_rows(use)[0], 0) << "the panel that has arrived";
    ASSERT_EQ(first_rows(use)[1], -1);
    ASSERT_TRUE(use.next().value());
    ASSERT_EQ(first_rows(use), (std::array{-1, 0, 0})) << "what else is locked: nothing is awaited any more";
    EXPECT_FALSE(use.next().value());
  }
  gate.allow(1 << 30);
  ASSERT_TRUE(expect_pass(model, **store, **resident).ok()) << "after a pass that was given up";
}

// A pass that ends early leaves reads under way; their memory is not free before they are
// done, however late that is.
TEST_F(Streaming, ReadsOfAPassThatEndedEarlyHarmNoLaterOne) {
  for (const char* name : {"llama2", "gguf-qwen3-q8_0.gguf"}) {
    const BaseModelFile model = open(name);
    Ledger resident_ledger(kGiB);
    auto resident = WeightStore::load(model, resident_ledger, {});
    ASSERT_TRUE(resident.ok());
    StreamingOptions streaming;
    streaming.packed_path = pack(model);
    streaming.weight_bytes = (*resident)->whole_bytes() * 3 / 5 + 8 * kKiB;
    streaming.open_reader = [](const std::string& path, const BlockReaderOptions& options) {
      auto reader = open_block_reader(path, options);
      if (!reader.ok()) return reader;
      return Result<std::unique_ptr<BlockReader>>(std::make_unique<NewestFirstBlockReader>(std::move(reader).value()));
    };
    auto store = stream(model, streaming);
    ASSERT_TRUE(store.ok()) << store.error().message;
    ASSERT_TRUE((*store)->streams());
    for (int pass = 0; pass < 200; ++pass) {
      const Status status = expect_pass(model, **store, **resident, pass % 2 != 0);
      ASSERT_TRUE(status.ok()) << status.error().message;
      ASSERT_FALSE(HasFailure()) << name << " pass " << pass;
    }
  }
}

// Budgets come and go between passes, from the whole model down to nearly nothing and
// back, while reads fail, come short and finish in any order: no wrong byte, and never
// more memory than the budget of the moment.
TEST_F(Streaming, ABudgetChangesBetweenPasses) {
  const uint64_t seed = 43;
  Prng prng(seed);
  for (const std::string& name : {std::string("llama2"), in_f16("llama2"), std::string("dtype-bf16"),
                                  std::string("gguf-llama-q4_k_m.gguf"), std::string("gguf-qwen3-q8_0.gguf")}) {
    const BaseModelFile model = open(name);
    Ledger resident_ledger(kGiB);
    auto resident = WeightStore::load(model, resident_ledger, {});
    ASSERT_TRUE(resident.ok());
    const int64_t whole = (*resident)->whole_bytes();
    StreamingOptions streaming;
    streaming.packed_path = pack(model);
    double failure = 0.005;
    streaming.open_reader = [&](const std::string& path, const BlockReaderOptions& options) {
      BlockReaderOptions short_reads = options;
      short_reads.largest_read_bytes = kDirectAlign * static_cast<int64_t>(1 + prng.below(8));
      short_reads.allow_ring = prng.below(4) != 0;
      auto reader = open_block_reader(path, short_reads);
      if (!reader.ok()) return reader;
      return Result<std::unique_ptr<BlockReader>>(
          std::make_unique<FaultyBlockReader>(std::move(reader).value(), prng.below(1u << 30), failure));
    };
    // It begins as a model that was loaded whole from its own files.
    auto loaded = WeightStore::load(model, ledger_, {});
    ASSERT_TRUE(loaded.ok());
    WeightStore& store = **loaded;
    int resized = 0, refused = 0, failed = 0, finished = 0, streamed = 0;
    for (int round = 0; round < 150; ++round) {
      SCOPED_TRACE(std::string(name) + " seed " + std::to_string(seed) + " round " + std::to_string(round));
      streaming.weight_bytes =
          prng.below(8) == 0 ? whole : static_cast<int64_t>(prng.below(static_cast<uint64_t>(whole)));
      streaming.residency.policy = static_cast<ResidencyPolicy>(prng.below(5));
      const int64_t before = store.resident_bytes();
      const Status status = store.resize(model, {}, streaming, log_);
      ++(status.ok() ? resized : refused);
      if (status.ok()) {
        EXPECT_LE(store.resident_bytes(), streaming.weight_bytes);
        streamed += store.streams();
      } else {
        EXPECT_EQ(status.error().code, ErrorCode::kTooLarge) << status.error().message;
        EXPECT_EQ(store.resident_bytes(), before);
      }
      for (int pass = 0; pass < 8; ++pass) {
        const Status passed = expect_pass(model, store, **resident, prng.below(4) != 0);
        ASSERT_FALSE(HasFailure());
        ++(passed.ok() ? finished : failed);
        EXPECT_TRUE(passed.ok() || passed.error().message.find("injected") != std::string::npos)
            << (passed.ok() ? "" : passed.error().message);
      }
    }
    EXPECT_GT(resized, 30) << name;
    EXPECT_GT(refused, 5) << name;
    EXPECT_GT(streamed, 3) << name;
    EXPECT_GT(failed, 0) << name;
    EXPECT_GT(finished, 400) << name;
    EXPECT_EQ(store.fingerprint(), (*resident)->fingerprint());
    failure = 0;
    streaming.weight_bytes = whole;
    ASSERT_TRUE(store.resize(model, {}, streaming, log_).ok());
    EXPECT_FALSE(store.streams());
    EXPECT_TRUE(expect_pass(model, store, **resident).ok());
  }
}

TEST_F(Streaming, AModelThatChangedSinceItWasLoadedIsNotMixedWithItsSuccessor) {
  const std::string path = in_f16("llama2");
  const BaseModelFile model = open(path);
  auto resident = WeightStore::load(model, ledger_, {}), loaded = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok() && loaded.ok());
  change_last_number(path, "lm_head.weight", 16);  // of the same format after it
  StreamingOptions streaming;
  // With the places of the old one's tensors nothing is packed, and nothing
  // is left behind.
  streaming.packed_path = folder_ / "stale.pack";
  const Status stale = pack_model(model, {}, streaming.packed_path, log_);
  ASSERT_FALSE(stale.ok());
  EXPECT_NE(stale.error().message.find("has changed since it was opened"), std::string::npos) << stale.error().message;
  EXPECT_FALSE(fs::exists(folder_ / "stale.pack") || fs::exists(folder_ / "stale.pack.part"));
  const BaseModelFile changed = open(path);
  streaming.packed_path = pack(changed);
  streaming.weight_bytes = (*resident)->whole_bytes() / 2 + 20 * kKiB;
  const Status status = (*loaded)->resize(changed, {}, streaming, log_);
  ASSERT_FALSE(status.ok());
  EXPECT_FALSE((*loaded)->resize(model, {}, streaming, log_).ok());
  EXPECT_NE(status.error().message.find("has changed since it was loaded"), std::string::npos)
      << status.error().message;
  EXPECT_FALSE((*loaded)->streams());
  EXPECT_TRUE(expect_pass(model, **loaded, **resident).ok());
  // What begins now has the new one.
  auto store = stream(changed, streaming);
  ASSERT_TRUE(store.ok()) << store.error().message;
  EXPECT_NE((*store)->fingerprint(), (*resident)->fingerprint());
}

// What is streamed comes from the file that was opened: another of its name
// is not begun with.
TEST_F(Streaming, APackedFileThatWasReplacedChangesNothing) {
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  StreamingOptions streaming;
  streaming.packed_path = pack(model);
  streaming.weight_bytes = (*resident)->whole_bytes() / 2;
  auto store = stream(model, streaming);
  ASSERT_TRUE(store.ok()) << store.error().message;
  ASSERT_TRUE((*store)->streams());
  const int64_t held = (*store)->resident_bytes();
  fs::rename(streaming.packed_path, folder_ / "aside");
  streaming.weight_bytes += 8 * kKiB;
  for (const bool replaced : {false, true}) {
    if (replaced) fs::copy_file(folder_ / "aside", streaming.packed_path);
    const Status status = (*store)->resize(model, {}, streaming, log_);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("removed or replaced"), std::string::npos) << status.error().message;
    EXPECT_EQ((*store)->resident_bytes(), held);
    EXPECT_TRUE(expect_pass(model, **store, **resident).ok());
  }
  streaming.weight_bytes = (*resident)->whole_bytes();  // all of it can still be read
  EXPECT_TRUE((*store)->resize(model, {}, streaming, log_).ok());
  EXPECT_FALSE((*store)->streams());
  EXPECT_TRUE(expect_pass(model, **store, **resident).ok());
}

TEST_F(Streaming, RowsThatCannotBeLockedAreStreamed) {
  const BaseModelFile model = open("llama2");
  Ledger resident_ledger(kGiB);
  auto resident = WeightStore::load(model, resident_ledger, {});
  ASSERT_TRUE(resident.ok());
  StreamingOptions streaming;
  streaming.packed_path = pack(model);
  streaming.weight_bytes = (*resident)->whole_bytes() / 2;
  auto store = stream(model, streaming);
  ASSERT_TRUE(store.ok());
  const auto size = fs::file_size(streaming.packed_path);
  const int64_t held = (*store)->resident_bytes(), streamed = (*store)->stream_shape().streamed_bytes;
  fs::copy_file(streaming.packed_path, folder_ / "copy");
  const fs::path same = folder_ / "same";  // the name of a damaged file goes
  fs::create_hard_link(streaming.packed_path, same);
  fs::resize_file(same, size / 2);
  streaming.weight_bytes = (*resident)->whole_bytes();
  const Status status = (*store)->resize(model, {}, streaming, log_);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ((*store)->resident_bytes(), held);
  EXPECT_EQ((*store)->stream_shape().streamed_bytes, streamed);
  EXPECT_NE(status.error().message.find("model.pack"), std::string::npos) << status.error().message;
  EXPECT_FALSE(expect_pass(model, **store, **resident).ok());  // what is streamed now is not there either
  EXPECT_FALSE(fs::exists(streaming.packed_path));
  fs::resize_file(same, size);  // zeros: noticed by the checks
  EXPECT_FALSE(expect_pass(model, **store, **resident).ok());
  std::ofstream(same, std::ios::binary | std::ios::in) << std::ifstream(folder_ / "copy").rdbuf();
  (void)expect_pass(model, **store, **resident);  // what was read ahead of it came from the damaged file
  EXPECT_TRUE(expect_pass(model, **store, **resident).ok());
  EXPECT_TRUE((*store)->resize(model, {}, streaming, log_).ok());
  EXPECT_FALSE((*store)->streams());
  EXPECT_TRUE(expect_pass(model, **store, **resident).ok());
}

}  // namespace
}  // namespace loralei
