// SPDX-License-Identifier: Apache-2.0
// Rows of quantised checkpoints as they are read, and what is found out only then. What
// their numbers are, tests/golden says.
#include "weights/stored_rows.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>

#include "formats/checkpoint_test_util.h"
#include "weights/streaming_fixture.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
using testing_support::Checkpoint;

constexpr const char* kCheckpoints[] = {"gptq-sym",   "gptq-asym",    "gptq-v2",        "gptq-8bit", "awq",
                                        "ct-int4",    "ct-int4-asym", "ct-int8-packed", "ct-int8",   "fp8-block",
                                        "fp8-tensor", "ct-fp8",       "awq-phi3",       "gptq-phi3", "ct-int4-phi3"};
// All experts of a layer in a tensor: those of crossed numbers and of mxfp4.
constexpr const char* kOfExperts[] = {"gpt-oss", "gpt-oss-mxfp4"};

class StoredRows : public testing_support::StreamingFixture {
 protected:
  // The golden checkpoint after a change, in a folder of the test.
  BaseModelFile changed(const std::string& name, const std::function<void(Checkpoint&)>& change) {
    Checkpoint checkpoint(name);
    change(checkpoint);
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    checkpoint.write(folder.string());
    return open(folder.string());
  }
  std::string load_error(const std::string& name, const std::function<void(Checkpoint&)>& change) {
    auto store = WeightStore::load(changed(name, change), ledger_, {});
    EXPECT_FALSE(store.ok()) << name;
    return store.ok() ? "" : store.error().message;
  }
  static std::vector<std::shared_ptr<File>> files_of(const BaseModelFile& model) {
    std::vector<std::shared_ptr<File>> files;
    for (const std::string& path : model.index.files) files.push_back(PosixFileSystem().open(path).value());
    return files;
  }
};

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << message << "\nlacks " << word;
}

// Whatever units they are read in. The scratch is as large as is said, and behind it
// nothing is written.
TEST_F(StoredRows, UnitsDoNotChangeTheRows) {
  std::vector<const char*> names(std::begin(kCheckpoints), std::end(kCheckpoints));
  names.insert(names.end(), std::begin(kOfExperts), std::end(kOfExperts));
  for (const char* name : names) {
    const BaseModelFile model = open(name);
    const auto files = files_of(model);
    int matrices = 0;
    for (const TensorInfo& info : model.index.tensors) {
      if (info.stored == nullptr) continue;
      matrices += info.shape.size() == 2;
      const int64_t row = row_bytes(info.dtype, info.shape.size() == 2 ? info.shape[1] : 1);
      const auto read = [&](int64_t unit) {
        std::vector<std::byte> rows(static_cast<size_t>(info.bytes));
        for (int64_t at = 0; at < info.shape[0]; at += unit) {
          const int64_t count = std::min(unit, info.shape[0] - at);
          std::vector<std::byte> scratch(static_cast<size_t>(stored_scratch_bytes(info, count)) + 64, std::byte{0xA5});
          const Status status = read_stored_rows(files, info, at, count, rows.data() + at * row,
                                                 std::span(scratch).first(scratch.size() - 64));
          EXPECT_TRUE(status.ok()) << status.error().message;
          for (size_t i = scratch.size() - 64; i < scratch.size(); ++i) EXPECT_EQ(scratch[i], std::byte{0xA5});
        }
        return rows;
      };
      const std::vector<std::byte> whole = read(info.shape[0]);
      EXPECT_TRUE(read(16) == whole) << name << " " << info.name;
      EXPECT_TRUE(read(48) == whole) << name << " " << info.name;
    }
    const int experts = model.config.experts.count;
    EXPECT_EQ(matrices, (experts > 0 ? 3 * experts : 7) * model.config.layers) << name;
  }
}

TEST_F(StoredRows, AStripDoesNotGrowWithTheWidth) {
  TensorInfo info{.dtype = DType::kQ4_0, .shape = {4096, 4096}};
  for (const StoredKind kind : {StoredKind::kGptq, StoredKind::kAwq}) {
    info.stored = std::make_shared<StoredForm>(StoredForm{.kind = kind, .bits = 4, .group = 128, .groups = 32});
    const int64_t narrow = stored_scratch_bytes(info, 1024);
    info.shape[1] = 1 << 20;
    EXPECT_EQ(stored_scratch_bytes(info, 1024), narrow);
    EXPECT_LE(narrow, 1024 * 24);
  }
}

TEST_F(StoredRows, ThreadsDoNotChangeWhatIsLoaded) {
  for (const char* name : kCheckpoints) {
    const BaseModelFile model = open(name);
    auto one = WeightStore::load(model, ledger_, {}), four = WeightStore::load(model, ledger_, {.threads = 4});
    ASSERT_TRUE(one.ok() && four.ok()) << name;
    EXPECT_EQ((*one)->fingerprint(), (*four)->fingerprint());
    for (const auto& group : pass_order(model, **one)) {
      for (const TensorSlot slot : group)
        EXPECT_TRUE(resident_bytes((*one)->view(slot)) == resident_bytes((*four)->view(slot))) << name;
    }
  }
}

// The whole model is known by the hash of all of its numbers, wherever they lie.
TEST_F(StoredRows, AnyPartChangesTheFingerprint) {
  const auto fingerprint = [&](const std::function<void(Checkpoint&)>& change) {
    return WeightStore::load(changed("gptq-asym", change), ledger_, {}).value()->fingerprint();
  };
  const std::set<std::string> all = {
      fingerprint([](Checkpoint&) {}),
      fingerprint([](Checkpoint& of) { of.set<uint32_t>("mlp.up_proj.qweight", 100, 0x12345678); }),
      fingerprint([](Checkpoint& of) { of.set<uint32_t>("mlp.up_proj.qzeros", 1, 0x12345678); }),
      fingerprint([](Checkpoint& of) { of.set<uint16_t>("mlp.up_proj.scales", 7, 0x1234); })};
  EXPECT_EQ(all.size(), 4u);
}

TEST_F(StoredRows, PackedAndStreamedTheyAreTheResidentRows) {
  for (const char* name : kCheckpoints) {
    SCOPED_TRACE(name);
    const BaseModelFile model = open(name);
    auto resident = WeightStore::load(model, ledger_, {});
    ASSERT_TRUE(resident.ok());
    StreamingOptions streaming;
    streaming.packed_path = pack(model);
    int streamed = 0;
    for (int part = 4; part <= 10; part += 2) {
      streaming.weight_bytes = (*resident)->resident_bytes() * part / 12 + 20 * kKiB;
      auto store = stream(model, streaming);
      if (!store.ok()) {
        EXPECT_EQ(store.error().code, ErrorCode::kTooLarge) << store.error().message;
        continue;
      }
      streamed += (*store)->streams();
      EXPECT_EQ((*store)->fingerprint(), (*resident)->fingerprint());
      ASSERT_TRUE(expect_pass(model, **store, **resident).ok());
    }
    EXPECT_GT(streamed, 0);
  }
}

TEST_F(StoredRows, ScalesThatF16DoesNotHoldAreRefused) {
  const auto scale = [](uint16_t bits) {
    return [bits](Checkpoint& of) { of.set<uint16_t>("self_attn.v_proj.weight_scale", 5, bits); };
  };
  const std::string small = load_error("ct-int4", scale(0x2EDC));  // bf16: 1e-10
  expect_words(small, {"v_proj", "row 2", "no number of f16"});
  expect_words(load_error("ct-int4", scale(0x7F80)), {"no number of f16"});  // infinity
  EXPECT_TRUE(WeightStore::load(changed("ct-int4", scale(0x3380)), ledger_, {}).ok()) << "2^-24 is one of f16";
}

TEST_F(StoredRows, SymmetricZeroPointsAreTheMiddle) {
  const auto zeros = [](uint32_t word) {
    return [word](Checkpoint& of) {
      for (size_t i = 0; i < of.at("self_attn.v_proj.qzeros").bytes.size() / 4; ++i)
        of.set<uint32_t>("self_attn.v_proj.qzeros", i, word);
    };
  };
  // Some tools store 8 and say "gptq".
  EXPECT_TRUE(WeightStore::load(changed("gptq-sym", zeros(0x88888888)), ledger_, {}).ok());
  expect_words(load_error("gptq-sym", zeros(0x77757777)), {"v_proj", "row 4", "stored as 5", "\"sym\": true"});
  expect_words(load_error("gptq-asym", zeros(0xF7777777)), {"row 7", "stored as 15"});
  EXPECT_TRUE(WeightStore::load(changed("gptq-v2", zeros(0xF7777777)), ledger_, {}).ok());
}

TEST_F(StoredRows, WeightsAndScalesThatAreNoNumbersAreRefused) {
  expect_words(
      load_error("fp8-block", [](Checkpoint& of) { of.set<uint8_t>("mlp.up_proj.weight", 128 * 3 + 1, 0xFF); }),
      {"mlp.up_proj", "row 3", "not a number"});
  for (const float scale : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e35f}) {
    expect_words(
        load_error("fp8-block", [&](Checkpoint& of) { of.set<float>("mlp.up_proj.weight_scale_inv", 1, scale); }),
        {"mlp.up_proj", "row 128", "no scale of weights"});
  }
}

// Where each number of a crossed tensor, or each nibble of one in mxfp4, comes to lie.
TEST_F(StoredRows, ExpertsOfOneTensorArePickedApart) {
  const BaseModelFile crossed = open("gpt-oss");
  const int64_t experts = crossed.config.experts.count, width = crossed.config.experts.width,
                hidden = crossed.config.hidden;
  Checkpoint plain("gpt-oss");
  auto store = WeightStore::load(crossed, ledger_, {});
  ASSERT_TRUE(store.ok()) << store.error().message;
  const auto stored = [&](const std::string& name, int64_t at) {
    uint16_t bits;
    std::memcpy(&bits, plain.at("mlp.experts." + name).bytes.data() + 2 * at, sizeof bits);
    return bits;
  };
  const auto held = [&](int64_t expert, int part, int64_t row, int64_t col) {
    const WeightView& view =
        (*store)->view((*store)->find(expert_module(0, static_cast<int>(expert), part) + ".weight"));
    uint16_t bits;
    std::memcpy(&bits, view.panels[0].data + (row * view.cols + col) * 2, sizeof bits);
    return bits;
  };
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t i = 0; i < hidden; ++i) {
      for (int64_t o = 0; o < width; ++o) {
        for (int part = 0; part < 2; ++part)
          ASSERT_EQ(held(expert, part, o, i), stored("gate_up_proj", ((expert * hidden + i) * width + o) * 2 + part));
        ASSERT_EQ(held(expert, 2, i, o), stored("down_proj", (expert * width + o) * hidden + i));
      }
    }
    for (int64_t o = 0; o < width; ++o) {
      for (int64_t part = 0; part < 2; ++part) {
        const float bias = (*store)->vector("model.layers.0.mlp.experts." + std::string(part == 0 ? "gate" : "up") +
                                            "_proj.bias")[expert * width + o];
        const uint32_t bits = uint32_t{stored("gate_up_proj_bias", (expert * width + o) * 2 + part)} << 16;
        ASSERT_EQ(bias, std::bit_cast<float>(bits));
      }
    }
  }
}

TEST_F(StoredRows, NibblesAndScalesOfMxfp4AreKept) {
  const BaseModelFile model = open("gpt-oss-mxfp4");
  const auto files = files_of(model);
  Checkpoint checkpoint("gpt-oss-mxfp4");
  const std::string &blocks = checkpoint.at("mlp.experts.gate_up_proj_blocks").bytes,
                    &scales = checkpoint.at("mlp.experts.gate_up_proj_scales").bytes;
  const TensorInfo& up = *model.index.find("model.layers.0.mlp.experts.2.up_proj.weight");
  ASSERT_EQ(up.dtype, DType::kMXFP4);
  std::vector<std::byte> rows(static_cast<size_t>(up.bytes));
  std::vector<std::byte> scratch(static_cast<size_t>(stored_scratch_bytes(up, up.shape[0])));
  ASSERT_TRUE(read_stored_rows(files, up, 0, up.shape[0], rows.data(), scratch).ok());
  const int64_t groups = up.shape[1] / 32;
  for (int64_t row = 0; row < up.shape[0]; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const auto stored = static_cast<size_t>((2 * up.shape[0] * 2 + row * 2 + 1) * groups + group);
      const std::byte* const block = rows.data() + (row * groups + group) * 17;
      ASSERT_EQ(block[0], static_cast<std::byte>(scales[stored]));
      for (int i = 0; i < 32; ++i) {
        const int nibble =
            static_cast<unsigned char>(blocks[stored * 16 + static_cast<size_t>(i / 2)]) >> (i % 2 * 4) & 15;
        ASSERT_EQ(std::to_integer<int>(block[1 + i % 16]) >> (i / 16 * 4) & 15, nibble);
      }
    }
  }
  expect_words(
      load_error("gpt-oss-mxfp4", [](Checkpoint& of) { of.set<uint8_t>("mlp.experts.down_proj_scales", 3, 0xFF); }),
      {"experts.0.down_proj", "row ", "not a number"});
}

TEST_F(StoredRows, WhatIsQuantisedIsNotQuantisedAgain) {
  for (const char* name : {"gptq-sym", "fp8-block"}) {
    const BaseModelFile model = open(name);
    auto store = WeightStore::load(model, ledger_, {.quantise = DType::kQ8_0});
    ASSERT_TRUE(store.ok()) << store.error().message;
    const WeightView& view = (*store)->view((*store)->find("model.layers.0.mlp.up_proj.weight"));
    EXPECT_EQ(view.dtype, model.index.find("model.layers.0.mlp.up_proj.weight")->dtype);
  }
}

}  // namespace
}  // namespace loralei
