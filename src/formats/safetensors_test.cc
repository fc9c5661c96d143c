// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

std::string file(const std::string& header, size_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return text + header + std::string(data_bytes, '\1');
}

Result<SafetensorsHeader> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), "f");
}

const std::string kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},)"
    R"("a":{"shape":[1,2],"dtype":"F32","data_offsets":[0,8]},"i":{"dtype":"I64","shape":[],"data_offsets":[14,22]}})";

TEST(Safetensors, ReadsTensorsInOffsetOrder) {
  auto header = parse(file(kGood + "   ", 22));  // trailing spaces are the format's padding
  ASSERT_TRUE(header.ok()) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 2u);
  const int64_t data = 8 + static_cast<int64_t>(kGood.size()) + 3;
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(header->tensors[0].offset, data);
  EXPECT_EQ(header->tensors[0].bytes, 8);
  EXPECT_EQ(header->tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[1].offset, data + 8);
  ASSERT_EQ(header->foreign.size(), 1u);
  EXPECT_EQ(header->foreign[0].name, "i");
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(Safetensors, AcceptsEmptyTensorsAndFiles) {
  EXPECT_TRUE(parse(file("{}", 0)).ok());
  auto header = parse(file(
      R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"s":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})",
      2));
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->tensors.size(), 2u);
}

TEST(Safetensors, RefusesWhatTheFormatForbids) {
  const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::vector<std::pair<std::string, size_t>> cases = {
      {"", 4},
      {"[]", 0},
      {" {}", 0},
      {"{} x", 0},
      {"{\"a\":3}", 0},
      {"{\"a\":null}", 0},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])") + "}", 4},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 8},  // bytes left over
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 3},  // cut off
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8},  // gap
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4},  // size
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4},
      {one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F99","shape":[1],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F4","shape":[1],"data_offsets":[0,1])"), 1},  // half a byte
      {one(R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":[1])"), 0},
      {one(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":[1])"), 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8},  // twice
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6},  // overlap
      {R"({"__metadata__":{"a":1}})", 0},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0},
      {R"({"__metadata__":["a"]})", 0},
  };
  for (const auto& [header, data] : cases) EXPECT_FALSE(parse(file(header, data)).ok()) << header;
  EXPECT_FALSE(parse("").ok());
  EXPECT_FALSE(parse("1234567").ok());
  EXPECT_FALSE(parse(std::string(8, '\xff') + "{}").ok());
  EXPECT_FALSE(parse(file("{}", 0).substr(0, 9)).ok());
}

// Any change of a good file is refused or still keeps every promise (checked by parsing
// again what is claimed).
TEST(Safetensors, RandomDamage) {
  const std::string good = file(kGood, 22);
  Prng random(7);
  int accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = good;
    const uint64_t changes = 1 + random.below(3);
    for (uint64_t i = 0; i < changes; ++i) bytes[random.below(bytes.size())] = static_cast<char>(random());
    auto header = parse(bytes);
    if (!header.ok()) continue;
    ++accepted;
    for (const TensorInfo& tensor : header->tensors) {
      ASSERT_GE(tensor.offset, 8) << "round " << round;
      ASSERT_LE(tensor.offset + tensor.bytes, static_cast<int64_t>(bytes.size())) << "round " << round;
    }
  }
  EXPECT_GT(accepted, 20);
}

struct Shards {
  MemoryFileSystem files;
  Shards() {
    files.put("/m/model-1.safetensors", file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    files.put("/m/model-2.safetensors", file(R"({"b":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}})", 6));
  }
  Result<SafetensorsModel> open(const std::string& map) {
    files.put("/m/model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":" + map + "}");
    return read_safetensors_model(files, "/m");
  }
};

TEST(Safetensors, JoinsShards) {
  Shards shards;
  auto model = shards.open(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->index.files.size(), 2u);
  ASSERT_TRUE(model->index.find("b"));
  EXPECT_EQ(model->index.files[model->index.find("b")->file], "/m/model-2.safetensors");
  EXPECT_EQ(model->index.find("c"), nullptr);
}

TEST(Safetensors, RefusesWrongShardIndexes) {
  for (const char* map : {R"({"a":"../model-1.safetensors"})", R"({"a":"/etc/passwd"})", R"({"a":".."})",
                          R"({"a":"x\\y"})", R"({"a":""})", R"({"a":1})", R"([])", R"({})",
                          R"({"a":"model-3.safetensors"})", R"({"a":"model-1.safetensors","c":"model-1.safetensors"})",
                          R"({"a":"model-2.safetensors","b":"model-1.safetensors"})"}) {
    Shards shards;
    EXPECT_FALSE(shards.open(map).ok()) << map;
  }
  Shards shards;
  auto missing = shards.open(R"({"a":"model-1.safetensors","b":"model-3.safetensors"})");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("model-3.safetensors"), std::string::npos);
  shards.files.put("/m/model-2.safetensors", file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  // One tensor in two files.
  EXPECT_FALSE(shards.open(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})").ok());
}

}  // namespace
}  // namespace loralei
