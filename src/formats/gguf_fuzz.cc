// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: refused or read, and then as a model's config and vocabulary.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "formats/gguf.h"
#include "formats/gguf_model.h"
#include "formats/linear_families.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file_bytes = static_cast<int64_t>(size);
  const auto bounded =
      loralei::parse_gguf(bytes, file_bytes, "fuzz", {.metadata_bytes = 1024, .pairs = 4, .tensors = 4});
  const auto parsed = loralei::parse_gguf(bytes, file_bytes, "fuzz");
  CHECK(parsed.ok() || !bounded.ok());  // a bound refuses, it makes nothing readable
  if (!parsed.ok()) return 0;
  CHECK(parsed->has_value());  // the whole file was given
  const loralei::GgufFile& file = **parsed;
  for (const loralei::TensorInfo& tensor : file.index.tensors) {
    CHECK(tensor.offset >= 0 && tensor.bytes >= 0 && tensor.offset + tensor.bytes <= static_cast<int64_t>(size));
    (void)loralei::canonical_name(tensor.name, loralei::ModelConfig());
  }
  std::vector<std::string> notes;
  const auto config = loralei::gguf_model_config(file, notes);
  for (size_t i = 0; i < file.index.tensors.size() && config.ok(); ++i) {
    const std::string& name = file.index.tensors[i].name;
    if (!loralei::is_gguf_draft(file, *config, name)) (void)loralei::canonical_name(name, *config);
  }
  const auto vocab = loralei::gguf_vocab(file, notes);
  if (vocab.ok()) {
    const auto count = static_cast<int32_t>(vocab->tokens.size());
    for (const int32_t id : {vocab->bos, vocab->eos, vocab->unk, vocab->sep, vocab->pad}) CHECK(id >= -1 && id < count);
    for (const int32_t id : vocab->ends) CHECK(id >= 0 && id < count);
  }
  return 0;
}
