// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_found_steps.h"

#include <bit>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

constexpr unsigned kOwnerOnly = 0600;
constexpr size_t kStepBytes = 2;

std::string head_of(const std::string& fingerprint, const KvGridShape& shape) {
  return "loralei-kv-grid 1\nmodel " + fingerprint + "\nlayers " + std::to_string(shape.layers) + "\nkv_heads " +
         std::to_string(shape.kv_heads) + "\nhead_dim " + std::to_string(shape.head_dim) + "\nnumbers " +
         dtype_info(shape.dtype).name + "\n";
}

size_t steps_of(const KvGridShape& shape) {
  return 2 * static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.channels());
}

Digest checksum_of(std::string_view text) {
  Sha256 sum;
  sum.update(std::as_bytes(std::span(text)));
  return sum.finish();
}

// `text` is whole.
Result<KvGrid> parse(std::string_view text, const std::string& head, const KvGridShape& shape) {
  if (text.size() != head.size() + kStepBytes * steps_of(shape) || !text.starts_with(head))
    return invalid_argument("it is of another model, shape or version");
  std::vector<float> steps(steps_of(shape));
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t at = head.size() + kStepBytes * i;
    const auto low = static_cast<uint8_t>(text[at]), high = static_cast<uint8_t>(text[at + 1]);
    steps[i] = std::bit_cast<float>(static_cast<uint32_t>(high) << 24 | static_cast<uint32_t>(low) << 16);
  }
  return KvGrid::create(shape, steps);
}

Result<KvGrid> read(const FileSystem& files, const std::string& path, const std::string& fingerprint,
                    const KvGridShape& shape) {
  constexpr int64_t kHeadBytesMost = 4096;
  const auto bytes_most = static_cast<int64_t>(kStepBytes * steps_of(shape) + sizeof(Digest)) + kHeadBytesMost;
  TRY_ASSIGN(const std::string file, files.read_all(path, bytes_most));
  if (file.size() < sizeof(Digest)) return corrupt("it was cut");
  const std::string_view text = std::string_view(file).substr(0, file.size() - sizeof(Digest));
  const Digest checksum = checksum_of(text);
  if (std::memcmp(checksum.data(), file.data() + text.size(), sizeof checksum) != 0)
    return corrupt("it was cut or changed");
  return parse(text, head_of(fingerprint, shape), shape);
}

}  // namespace

std::string kv_found_steps_path(const std::string& dir, const std::string& fingerprint, DType dtype) {
  return join_path(dir, fingerprint + "-" + dtype_info(dtype).name + ".kv-grid");
}

KvFoundSteps read_kv_found_steps(const FileSystem& files, const std::string& path, const std::string& fingerprint,
                                 const KvGridShape& shape) {
  KvFoundSteps found;
  if (!files.exists(path)) return found;
  auto grid = read(files, path, fingerprint, shape);
  if (grid.ok()) {
    found.grid = *std::move(grid);
  } else {
    found.note = "The steps of keys and values in '" + path + "' are not used: " + grid.error().message +
                 "; others will be found and take their place, and what was encoded with these is computed again.";
  }
  return found;
}

Status write_kv_found_steps(const KvGrid& grid, const std::string& fingerprint, const std::string& path) {
  const KvGridShape& shape = grid.shape();
  std::string text = head_of(fingerprint, shape);
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (const int32_t v : {0, 1}) {
      for (const float step : grid.steps(layer, v)) {
        const uint32_t bits = std::bit_cast<uint32_t>(step);
        text += static_cast<char>(bits >> 16 & 0xFF);
        text += static_cast<char>(bits >> 24);
      }
    }
  }
  const Digest checksum = checksum_of(text);
  text.append(reinterpret_cast<const char*>(checksum.data()), checksum.size());
  TRY_ASSIGN(WriteFile file, WriteFile::open(path + ".part", kOwnerOnly));
  TRY(file.resize(0));  // of a part that was left
  TRY(file.write(0, std::as_bytes(std::span(text))));
  return file.commit(path);
}

}  // namespace loralei
