// SPDX-License-Identifier: Apache-2.0
// Reads the head of a GGUF file (versions 2 and 3, little endian): metadata
// and tensor table.
//
// Pure functions over bytes plus two that read a file; any thread. Untrusted input:
// every count and length is checked against what is left before anything is allocated;
// arrays of arrays are refused; a key or tensor name that stands twice is an error;
// tensor offsets must be aligned and their bytes lie within the file. Format:
// github.com/ggml-org/ggml, docs/gguf.md.
// Failure: corrupt / unsupported / too_large / io with the file and the key or tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.h"
#include "base/result.h"
#include "formats/tensor_index.h"
#include "sys/file.h"

namespace loralei {

enum class GgufType : uint8_t { kInt, kFloat, kBool, kString, kIntArray, kFloatArray, kBoolArray, kStringArray };

// One metadata value; the member that `type` names holds it. All widths of whole numbers
// are kept as int64 (a uint64 above INT64_MAX is refused), booleans as 0 and 1.
struct GgufValue {
  GgufType type = GgufType::kInt;
  int64_t number = 0;
  double real = 0;
  std::string text;
  std::vector<int64_t> numbers;
  std::vector<float> reals;
  std::vector<std::string> texts;
};

struct GgufFile {
  std::string path;
  uint32_t version = 0;
  std::map<std::string, GgufValue> metadata;
  TensorIndex index;  // GGUF names; shapes slowest dimension first

  // The value of a key. nullopt when absent; an error names key and file when it has
  // another type or is out of range.
  Result<std::optional<int64_t>> integer(const std::string& key, int64_t low, int64_t high) const;
  Result<std::optional<double>> real(const std::string& key) const;  // whole numbers count as well
  Result<std::optional<bool>> boolean(const std::string& key) const;
  Result<std::optional<std::string>> text(const std::string& key) const;
  const GgufValue* find(const std::string& key) const;
};

// What a head may make the reader hold; beyond it, too_large. The defaults have room for
// any model's vocabulary.
struct GgufLimits {
  int64_t head_bytes = int64_t{512} << 20;      // of the file, up to the end of the tensor table
  int64_t metadata_bytes = int64_t{512} << 20;  // in memory: keys and values
  int64_t pairs = 1 << 16;                      // of key and value
  int64_t tensors = kMaxTensors;
};

// `head` holds the file from its start. Answers nullopt when it ends before the tensor
// table does and the file is longer.
Result<std::optional<GgufFile>> parse_gguf(std::span<const std::byte> head, int64_t file_bytes, const std::string& path,
                                           const GgufLimits& limits = {});
Result<GgufFile> read_gguf(const File& file, const GgufLimits& limits = {});
Result<GgufFile> read_gguf(const FileSystem& files, const std::string& path);

}  // namespace loralei
