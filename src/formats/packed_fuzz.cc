// SPDX-License-Identifier: Apache-2.0
// Any bytes as a packed file: refused or read, and what is read lies within the file.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/packed_index.h"
#include "sys/memory_file_system.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  loralei::MemoryFileSystem files;
  files.put("/model.pack", std::string(reinterpret_cast<const char*>(data), size));
  const auto file = files.open("/model.pack");
  CHECK(file.ok());
  const auto index = loralei::parse_packed(**file);
  if (!index.ok()) return 0;
  int64_t checks = 0;
  for (const loralei::PackedMatrix& matrix : index->matrices) {
    CHECK(matrix.at >= index->data_at && matrix.bytes() > 0);
    CHECK(matrix.at + matrix.bytes() <= static_cast<int64_t>(size));
    CHECK(matrix.first_check == checks);
    checks += matrix.tiles();
    if (!matrix.shrunk || matrix.cols > (1 << 12)) continue;
    // Its first and last tile, whatever they hold, are restored or refused.
    std::vector<std::byte> held(static_cast<size_t>(matrix.held_tile_bytes()));
    for (const int64_t tile : {int64_t{0}, matrix.tiles() - 1}) {
      const auto* const stored = reinterpret_cast<const std::byte*>(data) + matrix.at + tile * matrix.tile_bytes();
      const auto bytes = static_cast<size_t>(matrix.bytes_of_tile(tile));
      (void)matrix.restore_tile(tile, {stored, bytes}, held.data());
    }
  }
  CHECK(checks == static_cast<int64_t>(index->checks.size()));
  return 0;
}
