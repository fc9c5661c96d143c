// SPDX-License-Identifier: Apache-2.0
#include "formats/packed_index.h"

#include <cstring>

#include "base/check.h"
#include "base/fast_hash.h"
#include "formats/json_util.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr char kMagic[8] = {'L', 'O', 'R', 'A', 'P', 'A', 'C', 'K'};
constexpr uint32_t kVersion = 4;
constexpr const char* kLayout = "tile16/1";  // changes when tensor/tile_layout.h does
constexpr int64_t kPreamble = 32;
constexpr int64_t kDescriptionMax = int64_t{64} << 20;
constexpr int64_t kMatricesMax = 1 << 20;
constexpr int64_t kDimMax = int64_t{1} << 24;

int64_t aligned(int64_t bytes) { return (bytes + kPackedAlign - 1) / kPackedAlign * kPackedAlign; }
const char* layout_name(LayoutId layout) { return layout == LayoutId::kTile16 ? "tile16" : "plain"; }

std::string describe(const PackedIndex& index) {
  Json sources = Json::array();
  for (const PackedSource& source : index.sources)
    sources.push_back({{"name", source.name}, {"bytes", source.bytes}, {"mtime_ns", source.mtime_ns}});
  Json matrices = Json::array();
  for (const PackedMatrix& matrix : index.matrices) {
    Json& entry = matrices.emplace_back(Json{{"name", matrix.name},
                                             {"dtype", dtype_info(matrix.dtype).name},
                                             {"layout", layout_name(matrix.layout)},
                                             {"rows", matrix.rows},
                                             {"cols", matrix.cols},
                                             {"at", matrix.at}});
    if (!matrix.shrunk) continue;
    entry["shrunk"] = {{"symbols", matrix.shrunk->code.symbols}, {"tile_bytes", matrix.shrunk->tile_bytes}};
  }
  std::string fingerprint = index.fingerprint;
  fingerprint.resize(16, '-');
  return Json{{"layout", kLayout},
              {"quantise", index.quantise},
              {"fingerprint", fingerprint},
              {"sources", sources},
              {"checks_at", index.checks_at},
              {"data_at", index.data_at},
              {"file_bytes", index.file_bytes},
              {"done", index.done},
              {"shrink", index.shrink ? 1 : 0},
              {"matrices", matrices}}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

uint64_t head_hash(std::string_view description, std::span<const std::byte> checks) {
  const uint64_t seed = fast_hash(reinterpret_cast<const std::byte*>(description.data()), description.size(), kVersion);
  return fast_hash(checks.data(), checks.size(), seed);
}

Result<int64_t> need_int(const Json& object, const char* key, int64_t high, const std::string& place) {
  TRY_ASSIGN(const std::optional<int64_t> value, json_int(object, key, 0, high, place));
  if (!value) return corrupt(place + " has no '" + key + "'.");
  return *value;
}
Result<std::string> need_string(const Json& object, const char* key, const std::string& place) {
  TRY_ASSIGN(std::optional<std::string> value, json_string(object, key, place));
  if (!value) return corrupt(place + " has no '" + std::string(key) + "'.");
  return std::move(*value);
}
Result<const Json*> need_list(const Json& object, const char* key, const std::string& place) {
  const Json* list = json_find(object, key);
  if (list == nullptr || !list->is_array()) return corrupt(place + " has no list '" + std::string(key) + "'.");
  return list;
}

Status parse_shrunk(const Json& entry, const std::string& place, PackedMatrix& matrix) {
  if (!entry.is_object()) return corrupt(place + " gives '" + matrix.name + "' a shrunk form that is no object.");
  ShrunkForm form;
  TRY_ASSIGN(const Json* symbols, need_list(entry, "symbols", place));
  TRY_ASSIGN(form.tile_bytes, need_int(entry, "tile_bytes", INT64_MAX / 2, place));
  const int64_t most = matrix.held_tile_bytes();
  bool fits = can_shrink(matrix.dtype) && matrix.rows >= kRowTile && symbols->size() == form.code.symbols.size() &&
              form.tile_bytes % kShrunkTileAlign == 0 && form.tile_bytes < most &&
              form.tile_bytes >= shrunk_bytes(matrix.dtype, kRowTile * matrix.cols, 0);
  for (size_t i = 0; fits && i < form.code.symbols.size(); ++i) {
    const Json& symbol = (*symbols)[i];
    fits = symbol.is_number_unsigned() && symbol.get<uint64_t>() <= 255 &&
           (symbol.get<uint64_t>() & ~uint64_t{shrink_symbol_mask(matrix.dtype)}) == 0;
    if (fits) form.code.symbols[i] = symbol.get<uint8_t>();
  }
  if (!fits) return corrupt(place + " gives '" + matrix.name + "' an impossible shrunk form.");
  matrix.shrunk = form;
  return {};
}

Result<PackedMatrix> parse_matrix(const Json& entry, const std::string& place) {
  if (!entry.is_object()) return corrupt(place + " lists a matrix that is no object.");
  PackedMatrix matrix;
  TRY_ASSIGN(matrix.name, need_string(entry, "name", place));
  TRY_ASSIGN(const std::string dtype, need_string(entry, "dtype", place));
  TRY_ASSIGN(const std::string layout, need_string(entry, "layout", place));
  TRY_ASSIGN(matrix.rows, need_int(entry, "rows", kDimMax, place));
  TRY_ASSIGN(matrix.cols, need_int(entry, "cols", kDimMax, place));
  TRY_ASSIGN(matrix.at, need_int(entry, "at", INT64_MAX / 2, place));
  const std::optional<DType> known = parse_dtype(dtype);
  if (!known || (layout != "plain" && layout != "tile16")) {
    return unsupported(place + " holds '" + matrix.name + "' as " + dtype + " in layout " + layout + ".");
  }
  matrix.dtype = *known;
  matrix.layout = layout == "plain" ? LayoutId::kPlain : LayoutId::kTile16;
  if (matrix.rows == 0 || matrix.cols == 0 || !fits_blocks(matrix.dtype, matrix.cols) ||
      (matrix.layout == LayoutId::kTile16 && !has_tiles(matrix.dtype))) {
    return corrupt(place + " gives '" + matrix.name + "' an impossible shape.");
  }
  if (const Json* shrunk = json_find(entry, "shrunk")) TRY(parse_shrunk(*shrunk, place, matrix));
  return matrix;
}

Error damaged(const PackedMatrix& matrix, int64_t tile) {
  return corrupt("The packed file is damaged in '" + matrix.name + "', row " + std::to_string(tile * kRowTile) + ".");
}

}  // namespace

int64_t PackedMatrix::tiles() const { return (rows + kRowTile - 1) / kRowTile; }
int64_t PackedMatrix::tile_bytes() const { return shrunk ? shrunk->tile_bytes : held_tile_bytes(); }
int64_t PackedMatrix::bytes() const {
  return shrunk ? tiles() * shrunk->tile_bytes : matrix_bytes(dtype, layout, rows, cols);
}
int64_t PackedMatrix::bytes_of_tile(int64_t tile) const {
  return std::min(tile_bytes(), bytes() - tile * tile_bytes());
}
int64_t PackedMatrix::held_tile_bytes() const { return kRowTile * row_bytes(dtype, cols); }
int64_t PackedMatrix::held_bytes_of_tile(int64_t tile) const {
  return std::min(held_tile_bytes(), matrix_bytes(dtype, layout, rows, cols) - tile * held_tile_bytes());
}
Status PackedMatrix::restore_tile(int64_t tile, std::span<const std::byte> stored, std::byte* out) const {
  if (unshrink(dtype, shrunk->code, stored, held_bytes_of_tile(tile) / row_bytes(dtype, 1), out)) return {};
  return damaged(*this, tile);
}

uint32_t tile_check(std::span<const std::byte> tile, int64_t number) {
  return static_cast<uint32_t>(fast_hash(tile.data(), tile.size(), static_cast<uint64_t>(number)));
}

Status check_tiles(const PackedIndex& index, const PackedMatrix& matrix, int64_t first_tile, int64_t tiles,
                   const std::byte* stored) {
  for (int64_t tile = first_tile; tile < first_tile + tiles; ++tile) {
    const auto bytes = static_cast<size_t>(matrix.bytes_of_tile(tile));
    if (tile_check({stored, bytes}, tile) != index.checks[static_cast<size_t>(matrix.first_check + tile)])
      return damaged(matrix, tile);
    stored += bytes;
  }
  return {};
}

void place_matrices(PackedIndex& index) {
  int64_t checks = 0;
  for (PackedMatrix& matrix : index.matrices) {
    matrix.first_check = checks;
    checks += matrix.tiles();
  }
  index.checks.assign(static_cast<size_t>(checks), 0);
  // The description names its own size; with these digits it can only shrink.
  index.checks_at = index.data_at = index.file_bytes = index.done = INT64_MAX / 4;
  for (PackedMatrix& matrix : index.matrices) matrix.at = INT64_MAX / 4;
  index.checks_at = (kPreamble + static_cast<int64_t>(describe(index).size()) + 63) / 64 * 64;
  index.data_at = aligned(index.checks_at + checks * 4);
  index.done = 0;
  int64_t at = index.data_at;
  for (PackedMatrix& matrix : index.matrices) {
    matrix.at = at;
    at = aligned(at + matrix.bytes());
  }
  index.file_bytes = at;
}

std::string packed_head(const PackedIndex& index) {
  const std::string description = describe(index);
  std::string head(static_cast<size_t>(index.data_at), '\0');
  const auto size = static_cast<uint64_t>(description.size());
  CHECK(kPreamble + static_cast<int64_t>(size) <= index.checks_at);
  const auto checks = std::as_bytes(std::span(index.checks));
  const uint64_t hash = head_hash(description, checks);
  std::memcpy(head.data(), kMagic, 8);
  std::memcpy(head.data() + 8, &kVersion, 4);
  std::memcpy(head.data() + 16, &size, 8);
  std::memcpy(head.data() + 24, &hash, 8);
  std::memcpy(head.data() + kPreamble, description.data(), description.size());
  std::memcpy(head.data() + index.checks_at, checks.data(), checks.size());
  return head;
}

namespace {

Status parse_sources(const Json& json, const std::string& place, std::vector<PackedSource>& into) {
  TRY_ASSIGN(const Json* sources, need_list(json, "sources", place));
  for (const Json& entry : *sources) {
    if (!entry.is_object()) return corrupt(place + " lists a source that is no object.");
    PackedSource& source = into.emplace_back();
    TRY_ASSIGN(source.name, need_string(entry, "name", place));
    TRY_ASSIGN(source.bytes, need_int(entry, "bytes", INT64_MAX / 2, place));
    TRY_ASSIGN(source.mtime_ns, need_int(entry, "mtime_ns", INT64_MAX, place));
  }
  return {};
}

}  // namespace

Result<PackedIndex> parse_packed(const File& file) {
  const std::string place = "'" + file.path() + "'";
  std::byte preamble[kPreamble];
  if (file.size_bytes() < kPreamble) return corrupt(place + " is too short to be a packed file.");
  TRY(file.read_exact(0, preamble));
  if (std::memcmp(preamble, kMagic, 8) != 0) return corrupt(place + " is not a packed file.");
  uint32_t version = 0;
  uint64_t size = 0, hash = 0;
  std::memcpy(&version, preamble + 8, 4);
  std::memcpy(&size, preamble + 16, 8);
  std::memcpy(&hash, preamble + 24, 8);
  if (version != kVersion) {
    return unsupported(place + " is a packed file of version " + std::to_string(version) + ", not " +
                       std::to_string(kVersion) + ".");
  }
  if (size > static_cast<uint64_t>(std::min(kDescriptionMax, file.size_bytes() - kPreamble))) {
    return corrupt(place + " claims a description larger than itself.");
  }
  std::string text(size, '\0');
  TRY(file.read_exact(kPreamble, std::as_writable_bytes(std::span(text))));
  TRY_ASSIGN(const Json json, parse_json_object(text, place, kDescriptionMax));
  TRY_ASSIGN(const std::string layout, need_string(json, "layout", place));
  if (layout != kLayout) return unsupported(place + " is packed in layout " + layout + ", not " + kLayout + ".");

  PackedIndex index;
  TRY_ASSIGN(index.quantise, need_string(json, "quantise", place));
  TRY_ASSIGN(index.fingerprint, need_string(json, "fingerprint", place));
  TRY_ASSIGN(index.checks_at, need_int(json, "checks_at", file.size_bytes(), place));
  TRY_ASSIGN(index.data_at, need_int(json, "data_at", file.size_bytes(), place));
  TRY_ASSIGN(index.file_bytes, need_int(json, "file_bytes", INT64_MAX / 2, place));
  if (index.file_bytes != file.size_bytes() || index.file_bytes % kPackedAlign != 0) {
    return corrupt(place + " has " + std::to_string(file.size_bytes()) + " bytes, not the " +
                   std::to_string(index.file_bytes) + " it was made with.");
  }
  TRY(parse_sources(json, place, index.sources));
  TRY_ASSIGN(const Json* matrices, need_list(json, "matrices", place));
  if (std::ssize(*matrices) > kMatricesMax) return corrupt(place + " lists too many matrices.");
  int64_t end = index.data_at;
  int64_t checks = 0;
  for (const Json& entry : *matrices) {
    TRY_ASSIGN(PackedMatrix matrix, parse_matrix(entry, place));
    if (matrix.at < end || matrix.at % kPackedAlign != 0 || matrix.at > index.file_bytes ||
        matrix.bytes() > index.file_bytes - matrix.at) {
      return corrupt(place + " gives '" + matrix.name + "' a place outside the file.");
    }
    end = matrix.at + matrix.bytes();
    matrix.first_check = checks;
    checks += matrix.tiles();
    index.matrices.push_back(std::move(matrix));
  }
  TRY_ASSIGN(const int64_t shrink, need_int(json, "shrink", 1, place));
  index.shrink = shrink == 1;
  TRY_ASSIGN(index.done, need_int(json, "done", std::ssize(index.matrices), place));
  if (index.checks_at < kPreamble + static_cast<int64_t>(size) || index.data_at < index.checks_at ||
      (index.data_at - index.checks_at) / 4 < checks) {
    return corrupt(place + " has no room for its checks.");
  }
  index.checks.resize(static_cast<size_t>(checks));
  TRY(file.read_exact(index.checks_at, std::as_writable_bytes(std::span(index.checks))));
  if (head_hash(text, std::as_bytes(std::span(index.checks))) != hash) {
    return corrupt(place + " is damaged: its description does not match its hash.");
  }
  return index;
}

}  // namespace loralei
