// SPDX-License-Identifier: Apache-2.0
// Files that tests make for themselves: a folder that goes away, safetensors, PEFT
// adapters with random numbers for any model.
//
// One thread. A failure to write ends the test program with a CHECK.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/model_config.h"

namespace loralei::test {

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct MadeTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;  // written as F32
};

void write_file(const std::string& path, const std::string& bytes);
void write_safetensors(const std::string& path, const std::vector<MadeTensor>& tensors);

// A Hugging Face folder: one layer, heads of 64 numbers (which tiled attention has),
// weights in f32.
struct SmallModel {
  int hidden = 64, heads = 2, kv_heads = 1, ffn = 96, vocab = 96;
};
void write_small_model(const std::string& path, const SmallModel& shape = {});

struct MadeAdapter {
  int rank = 4;
  float alpha = 8;
  float deviation = 0.1f;  // numbers are uniform in +-deviation
  uint64_t seed = 1;
  std::vector<std::string> targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
};

// The tensors of a PEFT adapter for a model, and the folder PATH with them and the
// config; answers PATH.
std::vector<MadeTensor> adapter_tensors(const ModelConfig& model, const MadeAdapter& adapter);
std::string write_adapter(const std::string& path, const MadeAdapter& adapter, const std::vector<MadeTensor>& tensors);
std::string write_adapter(const std::string& path, const ModelConfig& model, const MadeAdapter& adapter);
// An adapter with an embedding and a head of so many tokens more than the model's,
// whose rows in the head are larger than the others', so that they are chosen often;
// and low-rank pairs of the head and of q_proj.
std::string write_wide_adapter(const std::string& path, const ModelConfig& model, int more_tokens);

}  // namespace loralei::test
