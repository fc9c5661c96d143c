// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_choice.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

using Names = std::vector<std::string>;

std::string choose(const Names& all, const std::string& file = "", HubKind kind = HubKind::kAny) {
  const auto choice = choose_hub_files(all, {"org/name", "main", file}, kind);
  if (!choice.ok()) return "error: " + choice.error().message;
  std::string text = choice->adapter ? "adapter:" : choice->gguf.empty() ? "model:" : "gguf " + choice->gguf + ":";
  for (const std::string& one : choice->files) text += " " + one;
  return text;
}
bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(HubChoice, AModelIsItsWeightsConfigsAndTokenizer) {
  EXPECT_EQ(choose({".gitattributes",    "README.md",          "chat_template.jinja",    "config.json",
                    "evil.py",           "flax_model.msgpack", "generation_config.json", "merges.txt",
                    "model.safetensors", "onnx/model.onnx",    "pytorch_model.bin",      "special_tokens_map.json",
                    "tokenizer.json",    "tokenizer.model",    "tokenizer_config.json",  "training_args.bin",
                    "vocab.json",        "vocab.txt",          "sub/config.json",        "sub/model.safetensors"}),
            "model: chat_template.jinja config.json generation_config.json merges.txt special_tokens_map.json "
            "tokenizer.json tokenizer.model tokenizer_config.json vocab.json vocab.txt model.safetensors");
}

TEST(HubChoice, WeightsInPartsComeOnce) {
  EXPECT_EQ(
      choose({"config.json", "consolidated.00.pth", "consolidated.safetensors", "model-00001-of-00002.safetensors",
              "model-00002-of-00002.safetensors", "model.safetensors.index.json"}),
      "model: config.json model.safetensors.index.json model-00001-of-00002.safetensors "
      "model-00002-of-00002.safetensors");
  EXPECT_EQ(choose({"config.json", "other.safetensors"}), "model: config.json other.safetensors");
}

TEST(HubChoice, AnAdapterIsToldFromAModel) {
  const Names lora = {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
                      "optimizer.pt"};
  const std::string all = "adapter: adapter_config.json tokenizer.json adapter_model.safetensors";
  EXPECT_EQ(choose(lora), all);
  EXPECT_EQ(choose(lora, "", HubKind::kAdapter), all);
  EXPECT_TRUE(holds(choose(lora, "", HubKind::kModel), "is a LoRA adapter, not a model"));
  const Names model = {"config.json", "model.safetensors"};
  EXPECT_TRUE(holds(choose(model, "", HubKind::kAdapter), "is no LoRA adapter: it has no adapter_config.json, but"));
  const Names both = {"adapter_config.json", "adapter_model.safetensors", "config.json", "model.safetensors"};
  EXPECT_EQ(choose(both, "", HubKind::kModel), "model: config.json model.safetensors");
  EXPECT_EQ(choose(both, "", HubKind::kAdapter), "adapter: adapter_config.json config.json adapter_model.safetensors");
  EXPECT_EQ(choose({"adapter_config.json", "adapters.safetensors"}),
            "adapter: adapter_config.json adapters.safetensors");
  // An adapter's own config beside a model's.
  EXPECT_TRUE(holds(choose({"adapter_config.json", "adapter_model.safetensors", "config.json"}), "adapter: "));
}

TEST(HubChoice, AGgufFileIsAskedForByItsFormat) {
  const Names all = {"config.json", "mmproj-f16.gguf", "name-Q4_K_M.gguf", "name-Q8_0.gguf", "name.f16.gguf"};
  EXPECT_EQ(choose(all, "Q8_0"), "gguf name-Q8_0.gguf: name-Q8_0.gguf");
  EXPECT_EQ(choose(all, "q4_k_m"), "gguf name-Q4_K_M.gguf: name-Q4_K_M.gguf");
  EXPECT_EQ(choose(all, "F16"),
            "error: org/name:F16 holds several GGUF files that may be meant; write org/name:FORMAT, "
            "as in org/name:Q4_K_M, or the name of one: mmproj-f16.gguf, name.f16.gguf.");
  EXPECT_EQ(choose(all, "name.f16.gguf"), "gguf name.f16.gguf: name.f16.gguf");
  EXPECT_TRUE(holds(choose(all, "_0"), "no GGUF file of this repository is called so; there is mmproj-f16.gguf, "));
  EXPECT_TRUE(holds(choose(all), "holds several GGUF files that may be meant; write org/name:FORMAT"));
  EXPECT_FALSE(holds(choose(all), "mmproj"));
  EXPECT_EQ(choose({"name-Q8_0.gguf", "mmproj.gguf"}), "gguf name-Q8_0.gguf: name-Q8_0.gguf");
  EXPECT_TRUE(holds(choose({"config.json", "model.safetensors"}, "Q8_0"), "there is none at all"));
  // Safetensors come first where nothing is asked for.
  EXPECT_EQ(choose({"config.json", "model.safetensors", "name-Q8_0.gguf"}), "model: config.json model.safetensors");
}

TEST(HubChoice, AGgufFileHasAllItsParts) {
  const Names all = {"Q4_K_M/n-Q4_K_M-00002-of-00003.gguf", "Q4_K_M/n-Q4_K_M-00001-of-00003.gguf",
                     "Q4_K_M/n-Q4_K_M-00003-of-00003.gguf", "n-Q8_0.gguf"};
  EXPECT_EQ(choose(all, "Q4_K_M"),
            "gguf Q4_K_M/n-Q4_K_M-00001-of-00003.gguf: Q4_K_M/n-Q4_K_M-00001-of-00003.gguf "
            "Q4_K_M/n-Q4_K_M-00002-of-00003.gguf Q4_K_M/n-Q4_K_M-00003-of-00003.gguf");
  EXPECT_TRUE(holds(choose({all[0], all[1]}, "Q4_K_M"), "the part 3 is not there"));
  EXPECT_TRUE(holds(choose({all[0], all[2]}, "Q4_K_M"), "the part 1 is not there"));
  for (const char* odd :
       {"n-00000-of-00003.gguf", "n-00004-of-00003.gguf", "n-0001-of-00003.gguf", "n-x0001-of-00003.gguf"})
    EXPECT_EQ(choose({odd}), std::string("gguf ") + odd + ": " + odd);
}

TEST(HubChoice, PicklesAreNoWeights) {
  EXPECT_TRUE(holds(choose({"config.json", "pytorch_model.bin"}), "as Python pickles alone"));
  EXPECT_TRUE(holds(choose({"adapter_config.json", "adapter_model.bin"}), "as Python pickles alone"));
  EXPECT_TRUE(holds(choose({"README.md"}), "holds no weights: neither safetensors nor GGUF"));
  EXPECT_TRUE(holds(choose({}), "holds no weights"));
}

}  // namespace
}  // namespace loralei
