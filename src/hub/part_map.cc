// SPDX-License-Identifier: Apache-2.0
#include "hub/part_map.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>

#include "base/check.h"
#include "sys/file.h"

namespace loralei {
namespace {

constexpr size_t kHeadBytes = 64;
static_assert(std::endian::native == std::endian::little, "the map's numbers are little-endian");

std::string head_of(int64_t bytes, int64_t piece_bytes) {
  std::string head = "loralei-parts 1 " + std::to_string(bytes) + " " + std::to_string(piece_bytes) + "\n";
  CHECK(head.size() <= kHeadBytes);
  head.resize(kHeadBytes, ' ');
  return head;
}

size_t count_of(int64_t bytes, int64_t piece_bytes) {
  return static_cast<size_t>(bytes / piece_bytes + (bytes % piece_bytes > 0 ? 1 : 0));
}

// How far each piece has come; nothing where the file is no map of these.
std::optional<std::vector<int64_t>> read_map(const std::string& path, int64_t bytes, int64_t piece_bytes) {
  std::vector<int64_t> done(count_of(bytes, piece_bytes));
  const size_t size = kHeadBytes + 8 * done.size();
  const auto text = PosixFileSystem().read_all(path, static_cast<int64_t>(size));
  if (!text.ok() || text->size() != size || !text->starts_with(head_of(bytes, piece_bytes))) return std::nullopt;
  for (size_t i = 0; i < done.size(); ++i) {
    std::memcpy(&done[i], text->data() + kHeadBytes + 8 * i, 8);
    const int64_t all = std::min(piece_bytes, bytes - static_cast<int64_t>(i) * piece_bytes);
    if (done[i] < 0 || done[i] > all) return std::nullopt;
  }
  return done;
}

int64_t sum_of(const std::vector<int64_t>& done) { return std::accumulate(done.begin(), done.end(), int64_t{0}); }

}  // namespace

Result<PartMap> PartMap::open(const std::string& path, int64_t bytes, int64_t piece_bytes) {
  CHECK(bytes >= 0 && piece_bytes > 0);
  TRY_ASSIGN(WriteFile file, WriteFile::open(path));
  PartMap map(std::move(file), bytes);
  auto done = read_map(path, bytes, piece_bytes);
  if (!done) {
    TRY(map.begin_anew(piece_bytes));
    return map;
  }
  map.piece_bytes_ = piece_bytes;
  map.done_ = std::move(*done);
  return map;
}

int64_t PartMap::look(const std::string& path, int64_t bytes, int64_t piece_bytes) {
  return sum_of(read_map(path, bytes, piece_bytes).value_or(std::vector<int64_t>()));
}

int64_t PartMap::bytes_of(size_t piece) const { return std::min(piece_bytes_, bytes_ - offset_of(piece)); }

int64_t PartMap::done_bytes() const { return sum_of(done_); }

Status PartMap::set(size_t piece, int64_t done) {
  done_[piece] = done;
  std::array<std::byte, 8> number;
  std::memcpy(number.data(), &done, 8);
  return file_.write(static_cast<int64_t>(kHeadBytes + 8 * piece), number);
}

Status PartMap::begin_anew(int64_t piece_bytes) {
  piece_bytes_ = piece_bytes;
  done_.assign(count_of(bytes_, piece_bytes), 0);
  std::string text = head_of(bytes_, piece_bytes);
  text.resize(kHeadBytes + 8 * done_.size(), '\0');
  TRY(file_.resize(0));
  return file_.write(0, std::as_bytes(std::span(text)));
}

}  // namespace loralei
