// SPDX-License-Identifier: Apache-2.0
#include "weights/pack.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/fast_hash.h"
#include "base/units.h"
#include "sys/file.h"
#include "sys/write_file.h"
#include "tensor/bf16_in_f16.h"

namespace loralei {
namespace {

constexpr int64_t kProbeBytes = 64 * kMiB;  // of the disk; a model with fewer that could shrink is not worth a probe
constexpr int64_t kIndexBytesOfMatrix = 8 * kKiB;  // names, shapes, and their JSON while it is read and written

// As they were when the model was opened: what is packed has their tensors' places.
std::vector<PackedSource> sources_of(const BaseModelFile& model) {
  std::vector<PackedSource> sources;
  for (size_t i = 0; i < model.index.files.size(); ++i) {
    const FileStamp& stamp = model.index.stamps[i];
    sources.push_back({base_name(model.index.files[i]), stamp.size_bytes, stamp.mtime_ns});
  }
  return sources;
}

// The file to be made but for shrunk forms, places, checks and fingerprint.
Result<PackedIndex> index_of(const BaseModelFile& model, const HeldTensors& held, const WeightOptions& options) {
  PackedIndex index;
  index.quantise = options.quantise ? dtype_info(*options.quantise).name : "";
  index.sources = sources_of(model);
  for (const HeldMatrix& matrix : held.matrices) {
    PackedMatrix packed;
    packed.name = matrix.source->name;
    packed.dtype = matrix.target.dtype;
    packed.layout = matrix.target.layout;
    packed.rows = matrix.target.rows;
    packed.cols = matrix.target.cols;
    index.matrices.push_back(std::move(packed));
  }
  return index;
}

Status go_on(const WeightOptions& options) {
  if (!options.stop.stop_requested()) return {};
  return Error{ErrorCode::kUnavailable,
               "Laying the model out for streaming was stopped; the next time goes on where this one ended."};
}

// What a thread keeps between its units is as large as the largest needs, and no larger.
struct UnitSizes {
  size_t source = 0, packed = 0, shrunk = 0;
  int64_t bytes() const { return static_cast<int64_t>(source + packed + shrunk); }
  void reserve(UnitBuffers& buffers) const {
    buffers.source.reserve(source);
    buffers.packed.reserve(packed);
    buffers.shrunk.reserve(shrunk);
  }
};

bool shrinkable(const HeldMatrix& matrix) {
  // The counts of a narrower tile would take more memory than it does itself.
  // An expert is read by itself and used at once.
  return can_shrink(matrix.target.dtype) && matrix.planned.expert < 0 && matrix.planned.role != MatrixRole::kEmbed &&
         matrix.target.rows >= kRowTile && matrix.target.cols >= 32;
}
int64_t shrinkable_bytes(const HeldTensors& held) {
  int64_t bytes = 0;
  for (const HeldMatrix& matrix : held.matrices) bytes += shrinkable(matrix) ? matrix.bytes : 0;
  return bytes;
}

UnitSizes unit_sizes(const HeldTensors& held, const WeightOptions& options) {
  UnitSizes sizes;
  std::vector<ReadUnit> units;
  for (size_t i = 0; i < held.matrices.size(); ++i) {
    const HeldMatrix& matrix = held.matrices[i];
    units.clear();
    add_units(held, i, units);
    const int64_t rows = units.front().row_count, tiles = (rows + kRowTile - 1) / kRowTile;
    const auto source = static_cast<size_t>(TensorReader::buffer_bytes(*matrix.source, matrix.target, rows));
    const auto packed = static_cast<size_t>(tiles * matrix.planned.tile_bytes);
    sizes.source = std::max(sizes.source, source);
    sizes.packed = std::max(sizes.packed, packed);
    if (options.shrink != StreamShrink::kOff && shrinkable(matrix)) sizes.shrunk = std::max(sizes.shrunk, packed);
  }
  return sizes;
}

// Whether a file made with `shrink` is one the options accept.
bool form_fits(const PackedIndex& index, const HeldTensors& held, StreamShrink wanted) {
  if (wanted == StreamShrink::kAuto) return true;
  return index.shrink == (wanted == StreamShrink::kOn && shrinkable_bytes(held) > 0);
}

// What only reading the matrices tells, from another index that is to be one of the same:
// which f16 matrices are stored as bf16, shrunk forms, and the places they lead to.
void adopt_forms(const PackedIndex& from, PackedIndex& index) {
  index.shrink = from.shrink;
  for (size_t i = 0; i < std::min(from.matrices.size(), index.matrices.size()); ++i) {
    PackedMatrix& matrix = index.matrices[i];
    if (matrix.dtype == DType::kF16 && from.matrices[i].dtype == DType::kBF16) matrix.dtype = DType::kBF16;
    matrix.shrunk = from.matrices[i].shrunk;
  }
  place_matrices(index);
}

// Rows of a matrix as the packed file holds them, to `out`; answers the hash of
// the source's bytes.
Result<uint64_t> read_rows(const TensorReader& reader, const HeldMatrix& matrix, const PackedMatrix& packed,
                           int64_t row_begin, int64_t row_count, std::byte* out, std::vector<std::byte>& buffer) {
  TRY_ASSIGN(const uint64_t hash, reader.read_rows(*matrix.source, matrix.target, row_begin, row_count, out, buffer));
  if (packed.dtype != matrix.target.dtype) f16_to_bf16_in_place(out, row_count * packed.cols);
  return hash;
}

// Whether a matrix is one of f16 numbers that are all numbers of bf16; reading ends at
// the first that is not.
Result<bool> holds_bf16(const TensorReader& reader, const HeldTensors& held, size_t number,
                        const WeightOptions& options) {
  const HeldMatrix& matrix = held.matrices[number];
  if (matrix.target.dtype != DType::kF16) return false;
  std::vector<ReadUnit> units;
  add_units(held, number, units);
  const UnitSizes sizes = unit_sizes(held, options);
  std::atomic<bool> all{true};
  TRY(run_units(units, options.threads, [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    if (!all.load()) return {};
    TRY(go_on(options));
    sizes.reserve(buffers);
    const int64_t row = row_bytes(matrix.target.dtype, matrix.target.cols);
    buffers.packed.resize(static_cast<size_t>(unit.row_count * row));
    TRY(reader.read_rows(*matrix.source, matrix.target, unit.row_begin, unit.row_count, buffers.packed.data(),
                         buffers.source));
    if (!all_bf16(buffers.packed.data(), unit.row_count * matrix.target.cols)) all.store(false);
    return {};
  }));
  return all.load();
}

// The form in which a matrix is at least 5 % smaller, if there is one.
Result<std::optional<ShrunkForm>> fit_matrix(const TensorReader& reader, const HeldTensors& held, size_t number,
                                             const PackedMatrix& packed, const WeightOptions& options) {
  const HeldMatrix& matrix = held.matrices[number];
  if (!shrinkable(matrix)) return std::optional<ShrunkForm>();
  std::vector<SymbolCounts> counts(static_cast<size_t>(packed.tiles()));
  std::vector<ReadUnit> units;
  add_units(held, number, units);
  const UnitSizes sizes = unit_sizes(held, options);
  TRY(run_units(units, options.threads, [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    TRY(go_on(options));
    sizes.reserve(buffers);
    const int64_t row = row_bytes(packed.dtype, packed.cols);
    buffers.packed.resize(static_cast<size_t>(unit.row_count * row));
    TRY(read_rows(reader, matrix, packed, unit.row_begin, unit.row_count, buffers.packed.data(), buffers.source));
    for (int64_t begin = 0; begin < unit.row_count; begin += kRowTile) {
      const int64_t rows = std::min<int64_t>(kRowTile, unit.row_count - begin);
      count_symbols(packed.dtype, buffers.packed.data() + begin * row, rows * packed.cols,
                    counts[static_cast<size_t>((unit.row_begin + begin) / kRowTile)]);
    }
    return {};
  }));
  const ShrinkFit fit = fit_shrink(counts);
  const int64_t bytes = shrunk_bytes(packed.dtype, kRowTile * packed.cols, fit.escapes_max);
  ShrunkForm form{fit.code, (bytes + kShrunkTileAlign - 1) / kShrunkTileAlign * kShrunkTileAlign};
  if (form.tile_bytes * 20 > packed.held_tile_bytes() * 19) return std::optional<ShrunkForm>();
  return std::optional(form);
}

// The tiles of `held` as they are stored.
Status shrink_tiles(const PackedMatrix& packed, int64_t first_tile, int64_t tiles, const std::byte* held,
                    std::vector<std::byte>& out) {
  out.resize(static_cast<size_t>(tiles * packed.tile_bytes()));
  for (int64_t i = 0; i < tiles; ++i) {
    const std::span<std::byte> stored(out.data() + i * packed.tile_bytes(), static_cast<size_t>(packed.tile_bytes()));
    const int64_t count = packed.held_bytes_of_tile(first_tile + i) / row_bytes(packed.dtype, 1);
    if (shrink(packed.dtype, packed.shrunk->code, held + i * packed.held_tile_bytes(), count, stored)) continue;
    // fit_matrix counted the escapes of this very tile.
    return corrupt("'" + packed.name + "' has changed while it was packed; start again when its file is complete.");
  }
  return {};
}

std::string one_digit(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

// Whether to shrink, on this machine and the disk of `file`, which holds nothing yet
// and is emptied again.
Result<bool> worth_shrinking(const TensorReader& reader, const HeldTensors& held, const WeightOptions& options,
                             const PackedIndex& index, WriteFile& file, LogSink& log) {
  if (shrinkable_bytes(held) < kProbeBytes) return false;
  size_t number = 0;
  while (!shrinkable(held.matrices[number])) ++number;
  PackedMatrix packed = index.matrices[number];
  TRY_ASSIGN(packed.shrunk, fit_matrix(reader, held, number, packed, options));
  if (!packed.shrunk) return false;
  // The first tiles of the matrix: shrunk for the decoder, and as they are, again and
  // again, for the disk.
  const HeldMatrix& matrix = held.matrices[number];
  std::vector<ReadUnit> units;
  add_units(held, number, units);
  const int64_t rows = units.front().row_count;
  UnitBuffers buffers;
  buffers.packed.resize(static_cast<size_t>(rows * row_bytes(packed.dtype, packed.cols)));
  TRY(read_rows(reader, matrix, packed, 0, rows, buffers.packed.data(), buffers.source));
  TRY(shrink_tiles(packed, 0, rows / kRowTile, buffers.packed.data(), buffers.shrunk));
  for (int64_t at = 0; at < kProbeBytes; at += std::ssize(buffers.packed)) TRY(file.write(at, buffers.packed));
  TRY(file.sync());
  auto rates = measure_shrink(packed, buffers.shrunk, file.path(), options.threads);
  TRY(file.resize(0));
  if (!rates.ok()) return std::move(rates).error();
  log.log(LogLevel::kInfo, "16-bit weights are stored " + std::string(rates->worth_it() ? "shrunk" : "as they are") +
                               ": this machine decodes " + one_digit(rates->decode_gb_s) + " GB/s and the disk reads " +
                               one_digit(rates->disk_gb_s) + " GB/s (--stream-shrink on or off decides otherwise).");
  return rates->worth_it();
}

// Gives the matrices their forms and places.
Status choose_forms(const TensorReader& reader, const HeldTensors& held, const WeightOptions& options,
                    PackedIndex& index, WriteFile& file, LogSink& log) {
  for (size_t i = 0; i < held.matrices.size(); ++i) {
    TRY_ASSIGN(const bool bf16, holds_bf16(reader, held, i, options));
    if (bf16) index.matrices[i].dtype = DType::kBF16;
  }
  index.shrink = options.shrink == StreamShrink::kOn && shrinkable_bytes(held) > 0;
  if (options.shrink == StreamShrink::kAuto) {
    TRY_ASSIGN(index.shrink, worth_shrinking(reader, held, options, index, file, log));
  }
  for (size_t i = 0; index.shrink && i < held.matrices.size(); ++i) {
    TRY_ASSIGN(index.matrices[i].shrunk, fit_matrix(reader, held, i, index.matrices[i], options));
  }
  place_matrices(index);
  return {};
}

bool same_plan(const PackedIndex& a, const PackedIndex& b) {
  const auto same = [](const PackedMatrix& x, const PackedMatrix& y) {
    return x.name == y.name && x.dtype == y.dtype && x.layout == y.layout && x.rows == y.rows && x.cols == y.cols &&
           x.shrunk == y.shrunk && x.at == y.at;
  };
  return a.quantise == b.quantise && a.sources == b.sources && a.file_bytes == b.file_bytes &&
         std::equal(a.matrices.begin(), a.matrices.end(), b.matrices.begin(), b.matrices.end(), same);
}

Status write_head(WriteFile& file, const PackedIndex& index) {
  const std::string head = packed_head(index);
  TRY(file.write(0, std::as_bytes(std::span(head))));
  return file.sync();
}

// What an interrupted packing has already done, taken over into `index`; false where
// there is nothing or another one.
bool take_over(const std::string& part, const HeldTensors& held, StreamShrink shrink, PackedIndex& index) {
  const PosixFileSystem files;
  auto file = files.open(part);
  if (!file.ok()) return false;
  auto begun = parse_packed(**file);
  if (!begun.ok() || begun->done == 0 || !form_fits(*begun, held, shrink)) return false;
  PackedIndex wanted = index;
  adopt_forms(*begun, wanted);
  if (!same_plan(*begun, wanted)) return false;
  index = std::move(*begun);
  return true;
}

class Packer {
 public:
  Packer(const TensorReader& reader, const HeldTensors& held, const WeightOptions& options, PackedIndex& index,
         WriteFile& file)
      : reader_(reader),
        held_(held),
        options_(options),
        index_(index),
        file_(file),
        sizes_(unit_sizes(held, options)),
        hash_(fingerprint_value(index.fingerprint)) {
    for (size_t i = 0; i < held.matrices.size(); ++i) {
      total_bytes_ += held.matrices[i].bytes;
      if (static_cast<int64_t>(i) < index.done) done_bytes_ += held.matrices[i].bytes;
    }
  }

  // Matrices [index.done, end), after which packing can go on from `end`.
  Status batch(size_t end) {
    std::vector<ReadUnit> units;
    for (auto i = static_cast<size_t>(index_.done); i < end; ++i) add_units(held_, i, units);
    TRY(run_units(units, options_.threads,
                  [&](const ReadUnit& unit, UnitBuffers& buffers) { return pack(unit, buffers); }));
    TRY(file_.sync());
    index_.done = static_cast<int64_t>(end);
    index_.fingerprint = fingerprint_text(hash_.load());
    return write_head(file_, index_);
  }

 private:
  Status pack(const ReadUnit& unit, UnitBuffers& buffers) {
    TRY(go_on(options_));
    sizes_.reserve(buffers);
    const HeldMatrix& matrix = held_.matrices[unit.matrix];
    const PackedMatrix& packed = index_.matrices[unit.matrix];
    const int64_t first_tile = unit.row_begin / kRowTile;
    const int64_t end_tile = (unit.row_begin + unit.row_count + kRowTile - 1) / kRowTile;
    int64_t bytes = 0;
    for (int64_t tile = first_tile; tile < end_tile; ++tile) bytes += packed.held_bytes_of_tile(tile);
    buffers.packed.assign(static_cast<size_t>(bytes), std::byte{0});
    TRY_ASSIGN(const uint64_t hash, read_rows(reader_, matrix, packed, unit.row_begin, unit.row_count,
                                              buffers.packed.data(), buffers.source));
    hash_.fetch_add(hash);
    if (packed.shrunk) {
      TRY(shrink_tiles(packed, first_tile, end_tile - first_tile, buffers.packed.data(), buffers.shrunk));
    }
    const std::vector<std::byte>& stored = packed.shrunk ? buffers.shrunk : buffers.packed;
    for (int64_t tile = first_tile; tile < end_tile; ++tile) {
      const std::byte* const data = stored.data() + (tile - first_tile) * packed.tile_bytes();
      index_.checks[static_cast<size_t>(packed.first_check + tile)] =
          tile_check({data, static_cast<size_t>(packed.bytes_of_tile(tile))}, tile);
    }
    TRY(file_.write(packed.at + first_tile * packed.tile_bytes(), stored));
    if (!options_.progress) return {};
    const std::lock_guard lock(mutex_);
    done_bytes_ += bytes;
    options_.progress(done_bytes_, total_bytes_);
    return {};
  }

  const TensorReader& reader_;
  const HeldTensors& held_;
  const WeightOptions& options_;
  PackedIndex& index_;
  WriteFile& file_;
  const UnitSizes sizes_;
  std::atomic<uint64_t> hash_;
  std::mutex mutex_;
  int64_t done_bytes_ = 0, total_bytes_ = 0;
};

std::string real_or_given(const FileSystem& files, const std::string& path) {
  auto real = files.real_path(path);
  return real.ok() ? std::move(real).value() : path;
}

std::string packed_name(const BaseModelFile& model, const WeightOptions& options) {
  std::string name = model.is_gguf ? base_name(model.path) : "loralei";
  if (options.quantise) name += std::string(".") + dtype_info(*options.quantise).name;
  if (options.quantised_layout == LayoutId::kPlain) name += ".plain";
  return name + ".pack";
}

// Emptied, with the forms and places of everything chosen.
Status begin_file(const BaseModelFile& model, const TensorReader& reader, const HeldTensors& held,
                  const WeightOptions& options, const std::string& path, PackedIndex& index, WriteFile& file,
                  LogSink& log) {
  TRY(file.resize(0));
  TRY(choose_forms(reader, held, options, index, file, log));
  const int64_t free = free_disk_bytes(parent_path(path));
  if (free < 0 || free >= index.file_bytes) return {};
  return too_large("Packing '" + model.path + "' needs " + format_bytes(index.file_bytes) + " but the disk of '" +
                   path + "' has " + format_bytes(free) + " free; make room or name another place with --cache-dir.");
}

Status fill_file(const TensorReader& reader, const HeldTensors& held, const WeightOptions& options, PackedIndex& index,
                 WriteFile& file) {
  TRY(file.resize(index.file_bytes));
  Packer packer(reader, held, options, index, file);
  while (index.done < std::ssize(held.matrices)) {
    auto end = static_cast<size_t>(index.done);
    for (int64_t bytes = 0; end < held.matrices.size() && bytes < options.pack_step_bytes; ++end)
      bytes += held.matrices[end].bytes;
    TRY(packer.batch(end));
  }
  return {};
}

}  // namespace

Result<PackedIndex> open_packed(const std::string& path, const BaseModelFile& model, const WeightOptions& options) {
  const PosixFileSystem files;
  TRY_ASSIGN(const std::unique_ptr<File> file, files.open(path));
  TRY_ASSIGN(PackedIndex index, parse_packed(*file));
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  TRY_ASSIGN(PackedIndex wanted, index_of(model, held, options));
  adopt_forms(index, wanted);
  if (index.done < std::ssize(index.matrices)) return corrupt("'" + path + "' was never completed.");
  if (!same_plan(index, wanted)) {
    return corrupt("'" + path +
                   "' was packed from another model, from this one before it changed, or with another --quant.");
  }
  if (!form_fits(index, held, options.shrink)) {
    return invalid_argument("'" + path + "' was packed with another --stream-shrink.");
  }
  return index;
}

Status pack_model(const BaseModelFile& model, const WeightOptions& options, const std::string& path, LogSink& log) {
  CHECK(options.shard.whole());
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  TRY_ASSIGN(PackedIndex index, index_of(model, held, options));
  const std::string part = path + ".part";
  TRY_ASSIGN(WriteFile file, WriteFile::open(part));
  const bool begun = take_over(part, held, options.shrink, index);
  const Status packed = [&]() -> Status {
    if (!begun) TRY(begin_file(model, reader, held, options, path, index, file, log));
    return fill_file(reader, held, options, index, file);
  }();
  if (packed.ok()) return file.commit(path);
  if (index.done == 0) TRY(remove_file(part));  // nothing to go on from
  return packed;
}

std::vector<std::string> packed_paths(const BaseModelFile& model, const WeightOptions& options,
                                      const std::string& cache_dir) {
  const std::string name = packed_name(model, options);
  std::vector<std::string> paths = {join_path(model.is_gguf ? parent_path(model.path) : model.path, name)};
  if (!cache_dir.empty()) {
    // Models of one name in several folders must not take each other's place.
    const PosixFileSystem files;
    const std::string real = real_or_given(files, model.path);
    const uint64_t hash = fast_hash(reinterpret_cast<const std::byte*>(real.data()), real.size(), 0);
    paths.push_back(join_path(cache_dir, fingerprint_text(hash).substr(0, 8) + "-" + name));
  }
  return paths;
}

Result<PackMemory> pack_memory(const BaseModelFile& model, const WeightOptions& options) {
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  const UnitSizes sizes = unit_sizes(held, options);
  PackMemory memory;
  memory.thread_bytes = sizes.bytes();
  int64_t all_tiles = 0, counted_tiles = 0;
  for (const HeldMatrix& matrix : held.matrices) {
    const int64_t tiles = (matrix.target.rows + kRowTile - 1) / kRowTile;
    all_tiles += tiles;
    if (shrinkable(matrix)) counted_tiles = std::max(counted_tiles, tiles);
  }
  // The checks are held by the index, by what it is compared with and by its text.
  memory.fixed_bytes = std::ssize(held.matrices) * kIndexBytesOfMatrix + 3 * all_tiles * int64_t{sizeof(uint32_t)};
  if (options.shrink != StreamShrink::kOff) memory.fixed_bytes += counted_tiles * int64_t{sizeof(SymbolCounts)};
  if (options.shrink == StreamShrink::kAuto && shrinkable_bytes(held) >= kProbeBytes)
    memory.fixed_bytes += measure_shrink_memory(static_cast<int64_t>(sizes.packed));
  return memory;
}

std::optional<PackedFile> find_packed(const BaseModelFile& model, const WeightOptions& options,
                                      const std::string& cache_dir, LogSink& log) {
  const PosixFileSystem files;
  for (const std::string& path : packed_paths(model, options, cache_dir)) {
    if (!files.exists(path)) continue;
    auto index = open_packed(path, model, options);
    if (index.ok()) return PackedFile{path, std::move(index).value()};
    log.log(LogLevel::kWarning, index.error().message + " It is made again.");
  }
  return std::nullopt;
}

Result<PackedFile> make_packed(const BaseModelFile& model, const WeightOptions& options, const std::string& cache_dir,
                               LogSink& log) {
  const std::vector<std::string> paths = packed_paths(model, options, cache_dir);
  Error last;
  for (const std::string& path : paths) {
    if (const std::string folder = parent_path(path); path != paths.front() && !make_folders(folder).ok()) continue;
    log.log(LogLevel::kInfo, "The model is laid out for streaming, once: '" + path + "'.");
    Status packed = pack_model(model, options, path, log);
    if (packed.ok()) {
      TRY_ASSIGN(PackedIndex index, open_packed(path, model, options));
      return PackedFile{path, std::move(index)};
    }
    last = std::move(packed).error();
    if (last.code == ErrorCode::kUnavailable) return last;
    log.log(LogLevel::kWarning, last.message);
  }
  return std::move(last).with_context(
      "The model does not fit the memory budget and could not be laid out for streaming");
}

Result<PackedFile> find_or_pack(const BaseModelFile& model, const WeightOptions& options, const std::string& cache_dir,
                                LogSink& log) {
  if (auto found = find_packed(model, options, cache_dir, log)) return std::move(*found);
  return make_packed(model, options, cache_dir, log);
}

}  // namespace loralei
