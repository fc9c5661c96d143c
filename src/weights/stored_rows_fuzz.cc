// SPDX-License-Identifier: Apache-2.0
// Any config.json and safetensors file, with a zero byte between them, as a checkpoint:
// refused or opened, and the rows of what is opened are read or refused.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "formats/base_model.h"
#include "sys/memory_file_system.h"
#include "tensor/dtype.h"
#include "weights/stored_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t config = std::min(input.find('\0'), size);
  MemoryFileSystem files;
  files.put("/m/config.json", std::string(input.substr(0, config)));
  files.put("/m/model.safetensors", std::string(input.substr(std::min(config + 1, size))));
  const auto model = open_base_model(files, "/m");
  if (!model.ok()) return 0;
  const std::vector<std::shared_ptr<File>> opened = {files.open("/m/model.safetensors").value()};
  for (const TensorInfo& info : model->index.tensors) {
    if (info.stored == nullptr) continue;
    constexpr int64_t kUnit = 32;
    const int64_t row_size = row_bytes(info.dtype, info.shape.size() > 1 ? info.shape[1] : 1);
    CHECK(info.bytes == info.shape[0] * row_size);
    std::vector<std::byte> rows(static_cast<size_t>(kUnit * row_size));
    std::vector<std::byte> scratch(static_cast<size_t>(stored_scratch_bytes(info, kUnit)));
    for (int64_t row = 0; row < info.shape[0]; row += kUnit) {
      const int64_t count = std::min(kUnit, info.shape[0] - row);
      if (!read_stored_rows(opened, info, row, count, rows.data(), scratch).ok()) break;
    }
  }
  return 0;
}
