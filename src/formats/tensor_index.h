// SPDX-License-Identifier: Apache-2.0
// TensorIndex: which tensors a model or adapter holds and where their bytes lie. The
// common result of the safetensors and GGUF readers.
//
// A plain value; owns no bytes and no open file.
// Invariants after a successful read: offset + bytes lies within its file;
// bytes == product(shape) in dtype (twice that with `f64`); names unique; files indexed
// by TensorInfo::file. Shapes are in row-major order, slowest dimension first ([out,
// in] for a linear layer), also for GGUF, whose headers say it reversed. A tensor with a
// `stored` form is a matrix that lies in several parts (weights/stored_rows.h puts its
// rows together): its dtype, shape and bytes are those of the whole, its place is not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/stored_form.h"
#include "sys/file.h"
#include "tensor/dtype.h"

namespace loralei {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint32_t file = 0;
  int64_t offset = 0;  // from the start of the file
  int64_t bytes = 0;
  bool crossed = false;  // the file holds it transposed, [shape[1], shape[0]]: adapters alone do
  bool f64 = false;  // the file's numbers are f64, and whoever reads them makes f32 (dtype) of them: adapters alone do
  std::shared_ptr<const StoredForm> stored = nullptr;  // of quantised checkpoints of several tensors a matrix
  float plus = 0;  // what whoever reads a vector adds to each of its numbers (ModelConfig::norm_plus_one)
};

struct TensorIndex {
  std::vector<std::string> files;
  std::vector<FileStamp> stamps;  // of files, as they were when this was read from them
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string, size_t> by_name;

  const TensorInfo* find(const std::string& name) const {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : &tensors[it->second];
  }
};

}  // namespace loralei
