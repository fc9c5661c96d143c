// SPDX-License-Identifier: Apache-2.0
#include "weights/pack.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/fast_hash.h"
#include "base/units.h"
#include "sys/file.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

constexpr int64_t kBatchBytes = 256 * kMiB;  // written between two points from which packing can go on

Result<std::vector<PackedSource>> sources_of(const BaseModelFile& model) {
  const PosixFileSystem files;
  std::vector<PackedSource> sources;
  for (const std::string& path : model.index.files) {
    TRY_ASSIGN(const FileStamp stamp, files.stamp(path));
    sources.push_back({base_name(path), stamp.size_bytes, stamp.mtime_ns});
  }
  return sources;
}

// The file to be made: everything but checks and fingerprint.
Result<PackedIndex> index_of(const BaseModelFile& model, const HeldTensors& held, const WeightOptions& options) {
  PackedIndex index;
  index.quantise = options.quantise ? dtype_info(*options.quantise).name : "";
  TRY_ASSIGN(index.sources, sources_of(model));
  for (const HeldMatrix& matrix : held.matrices) {
    PackedMatrix packed;
    packed.name = matrix.source->name;
    packed.dtype = matrix.target.dtype;
    packed.layout = matrix.target.layout;
    packed.rows = matrix.target.rows;
    packed.cols = matrix.target.cols;
    index.matrices.push_back(std::move(packed));
  }
  place_matrices(index);
  return index;
}

bool same_plan(const PackedIndex& a, const PackedIndex& b) {
  const auto same = [](const PackedMatrix& x, const PackedMatrix& y) {
    return x.name == y.name && x.dtype == y.dtype && x.layout == y.layout && x.rows == y.rows && x.cols == y.cols &&
           x.at == y.at;
  };
  return a.quantise == b.quantise && a.sources == b.sources && a.file_bytes == b.file_bytes &&
         std::equal(a.matrices.begin(), a.matrices.end(), b.matrices.begin(), b.matrices.end(), same);
}

Status write_head(WriteFile& file, const PackedIndex& index) {
  const std::string head = packed_head(index);
  TRY(file.write(0, std::as_bytes(std::span(head))));
  return file.sync();
}

// What an interrupted packing has already done, taken over into `index`; nothing where that was another one.
void take_over(const std::string& part, PackedIndex& index) {
  const PosixFileSystem files;
  auto file = files.open(part);
  if (!file.ok()) return;
  auto begun = parse_packed(**file);
  if (!begun.ok() || !same_plan(*begun, index)) return;
  index.checks = std::move(begun->checks);
  index.fingerprint = begun->fingerprint;
  index.done = begun->done;
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
    const HeldMatrix& matrix = held_.matrices[unit.matrix];
    const PackedMatrix& packed = index_.matrices[unit.matrix];
    const int64_t first_tile = unit.row_begin / kRowTile;
    const int64_t end_tile = (unit.row_begin + unit.row_count + kRowTile - 1) / kRowTile;
    int64_t bytes = 0;
    for (int64_t tile = first_tile; tile < end_tile; ++tile) bytes += packed.bytes_of_tile(tile);
    buffers.packed.assign(static_cast<size_t>(bytes), std::byte{0});
    TRY_ASSIGN(const uint64_t hash, reader_.read_rows(*matrix.source, matrix.target, unit.row_begin, unit.row_count,
                                                      buffers.packed.data(), buffers.source));
    hash_.fetch_add(hash);
    for (int64_t tile = first_tile; tile < end_tile; ++tile) {
      const std::byte* const data = buffers.packed.data() + (tile - first_tile) * packed.tile_bytes();
      index_.checks[static_cast<size_t>(packed.first_check + tile)] =
          tile_check({data, static_cast<size_t>(packed.bytes_of_tile(tile))}, tile);
    }
    TRY(file_.write(packed.at + first_tile * packed.tile_bytes(), buffers.packed));
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

}  // namespace

Result<PackedIndex> open_packed(const std::string& path, const BaseModelFile& model, const WeightOptions& options) {
  const PosixFileSystem files;
  TRY_ASSIGN(const std::unique_ptr<File> file, files.open(path));
  TRY_ASSIGN(PackedIndex index, parse_packed(*file));
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  TRY_ASSIGN(const PackedIndex wanted, index_of(model, held, options));
  if (index.done < std::ssize(index.matrices)) return corrupt("'" + path + "' was never completed.");
  if (!same_plan(index, wanted)) {
    return corrupt("'" + path +
                   "' was packed from another model, from this one before it changed, or with another --quant.");
  }
  return index;
}

Status pack_model(const BaseModelFile& model, const WeightOptions& options, const std::string& path) {
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  TRY_ASSIGN(PackedIndex index, index_of(model, held, options));
  const std::string part = path + ".part";
  TRY_ASSIGN(WriteFile file, WriteFile::open(part));
  take_over(part, index);
  if (index.done == 0) {
    TRY(file.resize(0));
    const int64_t free = free_disk_bytes(parent_path(path));
    if (free >= 0 && free < index.file_bytes) {
      TRY(remove_file(part));
      return too_large("Packing '" + model.path + "' needs " + format_bytes(index.file_bytes) + " but the disk of '" +
                       path + "' has " + format_bytes(free) +
                       " free; make room or name another place with --cache-dir.");
    }
  }
  TRY(file.resize(index.file_bytes));
  Packer packer(reader, held, options, index, file);
  while (index.done < std::ssize(held.matrices)) {
    auto end = static_cast<size_t>(index.done);
    for (int64_t bytes = 0; end < held.matrices.size() && bytes < kBatchBytes; ++end) bytes += held.matrices[end].bytes;
    TRY(packer.batch(end));
  }
  return file.commit(path);
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

Result<PackedFile> find_or_pack(const BaseModelFile& model, const WeightOptions& options, const std::string& cache_dir,
                                LogSink& log) {
  const std::vector<std::string> paths = packed_paths(model, options, cache_dir);
  const PosixFileSystem files;
  for (const std::string& path : paths) {
    if (!files.exists(path)) continue;
    auto index = open_packed(path, model, options);
    if (index.ok()) return PackedFile{path, std::move(index).value()};
    log.log(LogLevel::kWarning, index.error().message + " It is made again.");
  }
  Error last;
  for (const std::string& path : paths) {
    if (const std::string folder = parent_path(path); path != paths.front() && !make_folders(folder).ok()) continue;
    log.log(LogLevel::kInfo, "The model is laid out for streaming, once: '" + path + "'.");
    Status packed = pack_model(model, options, path);
    if (packed.ok()) {
      TRY_ASSIGN(PackedIndex index, open_packed(path, model, options));
      return PackedFile{path, std::move(index)};
    }
    last = std::move(packed).error();
    if (last.code == ErrorCode::kUnavailable) return last;  // another process makes this very file
    log.log(LogLevel::kWarning, last.message);
  }
  return std::move(last).with_context(
      "The model does not fit the memory budget and could not be laid out for streaming");
}

}  // namespace loralei
