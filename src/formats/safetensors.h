// SPDX-License-Identifier: Apache-2.0
// Reads the headers of safetensors files: one file, or the shards that a
// model.safetensors.index.json names.
//
// Pure functions over bytes plus two that read files; any thread. Untrusted input:
// the header's length, names, shapes and offsets are checked as the format demands
// (github.com/huggingface/safetensors, "Format"): header at most 100 MB and starting with
// '{', no name twice, product(shape) * size == the span of data_offsets, spans contiguous
// from 0 to the end of the file. Number formats other than F32, F16 and BF16 go to
// `foreign`: whoever needs such a tensor refuses it by name.
// Failure: corrupt / too_large / io with the file and the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/result.h"
#include "formats/tensor_index.h"
#include "sys/file.h"

namespace loralei {

// A tensor in a number format that we do not compute with ("I64", "F8_E4M3").
struct ForeignTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape = {};
  int64_t offset = 0, bytes = 0;  // as of TensorInfo
  uint32_t file = 0;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // ordered by offset; offsets from the start of the file; TensorInfo::file is 0
  std::vector<ForeignTensor> foreign;
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// `head`: the file from its start, holding at least the whole header; `path`
// is for messages.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                            const std::string& path);
// header_bytes_max: beside the format's own limit; a longer header is too_large,
// and not read.
Result<SafetensorsHeader> read_safetensors(const File& file, int64_t header_bytes_max = kMaxSafetensorsHeaderBytes);
Result<SafetensorsHeader> read_safetensors(const FileSystem& files, const std::string& path);

// One file name (without folder) for each tensor name. Names that leave the
// folder are refused.
Result<std::map<std::string, std::string>> parse_shard_index(std::string_view json, const std::string& path);

// A single file's or a sharded model's index. `directory` holds model.safetensors or
// model.safetensors.index.json.
struct SafetensorsModel {
  TensorIndex index;
  std::vector<ForeignTensor> foreign;
};
Result<SafetensorsModel> read_safetensors_model(const FileSystem& files, const std::string& directory);

}  // namespace loralei
