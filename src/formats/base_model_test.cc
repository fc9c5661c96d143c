// SPDX-License-Identifier: Apache-2.0
#include "formats/base_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "formats/json_util.h"
#include "formats/model_tensors.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

// Every model of the golden folder opens; what it computes is checked by tests/golden.
TEST(BaseModel, GoldenModelsOpen) {
  const PosixFileSystem files;
  const std::string folder = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models";
  auto entries = files.list(folder);
  ASSERT_TRUE(entries.ok()) << "the committed golden models are missing: " << entries.error().message;
  int count = 0;
  for (const DirEntry& entry : entries.value()) {
    if (!entry.is_directory && !entry.name.ends_with(".gguf")) continue;
    auto model = open_base_model(folder + "/" + entry.name);
    EXPECT_TRUE(model.ok()) << entry.name << ": " << (model.ok() ? "" : model.error().message);
    ++count;
  }
  EXPECT_GT(count, 5);
}

const char* kConfig =
    R"({"architectures":["LlamaForCausalLM"],"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,
    "intermediate_size":16,"vocab_size":4,"eos_token_id":2})";

std::string safetensors(const std::vector<ExpectedTensor>& tensors) {
  Json header = Json::object();
  int64_t offset = 0;
  for (const ExpectedTensor& tensor : tensors) {
    int64_t bytes = 2;
    for (const int64_t dim : tensor.shape) bytes *= dim;
    header[tensor.name] = {{"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  const std::string text = header.dump();
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return file + text + std::string(static_cast<size_t>(offset), '\0');
}

struct Directory {
  MemoryFileSystem files;
  std::vector<ExpectedTensor> tensors;
  Directory() {
    ModelConfig config{.architecture = "llama",
                       .hidden = 8,
                       .layers = 1,
                       .heads = 2,
                       .kv_heads = 2,
                       .head_dim = 4,
                       .ffn = 16,
                       .vocab = 4};
    tensors = expected_tensors(config);
    files.put("/m/config.json", kConfig);
  }
  Result<BaseModelFile> open() {
    files.put("/m/model.safetensors", safetensors(tensors));
    return open_base_model(files, "/m");
  }
  std::string error() {
    auto model = open();
    EXPECT_FALSE(model.ok());
    return model.ok() ? "" : model.error().message;
  }
};

TEST(BaseModel, DirectoryOpens) {
  Directory directory;
  directory.files.put("/m/generation_config.json", R"({"eos_token_id":[3,2],"temperature":0.5})");
  directory.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {2}});
  auto model = directory.open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->config.eos, (std::vector<TokenId>{2, 3}));  // joined
  EXPECT_EQ(model->defaults.temperature, 0.5);
  EXPECT_EQ(model->index.find("model.layers.0.self_attn.rotary_emb.inv_freq"), nullptr);
  EXPECT_EQ(model->notes.size(), 1u);
  EXPECT_FALSE(model->permuted_qk || model->is_gguf || model->vocab);
}

TEST(BaseModel, TensorsMustBeThoseOfTheConfig) {
  Directory extra;
  extra.tensors.push_back({"model.layers.1.mlp.up_proj.weight", {16, 8}});
  EXPECT_NE(extra.error().find("model.layers.1.mlp.up_proj.weight"), std::string::npos);
  Directory missing;
  missing.tensors.pop_back();
  EXPECT_NE(missing.error().find("lm_head.weight"), std::string::npos);
  Directory shape;
  shape.tensors[0].shape = {5, 8};
  const std::string message = shape.error();
  EXPECT_NE(message.find("[5, 8]"), std::string::npos);
  EXPECT_NE(message.find("[4, 8]"), std::string::npos);
  Directory bias;
  bias.tensors.push_back({"model.layers.0.self_attn.q_proj.bias", {8}});
  EXPECT_NE(bias.error().find("q_proj.bias"), std::string::npos);
}

// A loop of links stands for what the system does not tell about; a folder that may not
// be searched is another.
TEST(BaseModel, WhatCannotBeLookedAtIsNotSaidToBeAbsent) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("loralei-loop-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  fs::create_symlink("config.json", folder / "config.json");
  for (const fs::path& path : {folder, folder / "config.json"}) {
    const auto model = open_base_model(path.string());
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.error().code, ErrorCode::kIo) << model.error().message;
    EXPECT_NE(model.error().message.find("cannot inspect"), std::string::npos) << model.error().message;
  }
  fs::remove_all(folder);
}

TEST(BaseModel, GitLfsPointersAreNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  MemoryFileSystem files;
  const auto expect_pointer = [&](const std::string& path, const std::string& file) {
    const auto model = open_base_model(files, path);
    ASSERT_FALSE(model.ok());
    for (const std::string& word : {file, std::string("Git LFS pointer"), std::string("git lfs pull")})
      EXPECT_NE(model.error().message.find(word), std::string::npos) << model.error().message;
  };
  files.put("/one/config.json", kConfig);
  files.put("/one/model.safetensors", pointer);
  expect_pointer("/one", "model.safetensors");
  files.put("/parts/config.json", kConfig);
  files.put("/parts/model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "part.safetensors"}})");
  files.put("/parts/part.safetensors", pointer);
  expect_pointer("/parts", "part.safetensors");
  files.put("/parts/model.safetensors.index.json", pointer);
  expect_pointer("/parts", "model.safetensors.index.json");
  files.put("/parts/config.json", pointer);
  expect_pointer("/parts", "config.json");
  files.put("/model.gguf", pointer);
  expect_pointer("/model.gguf", "model.gguf");
}

TEST(BaseModel, SaysWhatAPathIsInstead) {
  MemoryFileSystem files;
  const auto error = [&](const std::string& path) {
    auto model = open_base_model(files, path);
    EXPECT_FALSE(model.ok());
    return model.ok() ? Error{} : model.error();
  };
  EXPECT_EQ(error("/nothing").code, ErrorCode::kNotFound);
  files.put("/adapter/adapter_config.json", "{}");
  EXPECT_NE(error("/adapter").message.find("--adapter"), std::string::npos);
  files.put("/ggufs/a.gguf", "x");
  EXPECT_NE(error("/ggufs").message.find("a.gguf"), std::string::npos);
  files.put("/other/readme.txt", "x");
  EXPECT_NE(error("/other").message.find("config.json"), std::string::npos);
  files.put("/pickle/config.json", kConfig);
  files.put("/pickle/pytorch_model.bin", "x");
  EXPECT_NE(error("/pickle").message.find("safe_serialization"), std::string::npos);
  files.put("/half/config.json", kConfig);
  EXPECT_NE(error("/half").message.find("model.safetensors"), std::string::npos);
  files.put("/m/model.safetensors", "x");
  EXPECT_NE(error("/m/model.safetensors").message.find("directory"), std::string::npos);
  EXPECT_EQ(error("/ggufs/a.gguf").code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace loralei
