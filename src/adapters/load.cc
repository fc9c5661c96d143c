// SPDX-License-Identifier: Apache-2.0
// Loads an adapter: plans from headers, allocates once, and reads layer by layer
// (file_pass.h) what the plan says.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "adapters/adapter.h"
#include "adapters/change.h"
#include "adapters/file_pass.h"
#include "adapters/load_plan.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/printable.h"
#include "base/units.h"
#include "device/host/arena.h"
#include "formats/foreign_files.h"
#include "formats/safetensors.h"
#include "tensor/codec.h"

namespace loralei {

namespace {

// Far more than the tables of the largest adapters take; they are in no grant.
constexpr int64_t kMaxAdapterHeaderBytes = 8 * kMiB;
constexpr GgufLimits kAdapterGgufLimits{
    .head_bytes = 16 * kMiB, .metadata_bytes = 4 * kMiB, .pairs = 1024, .tensors = 1 << 14};

// The one zeroed block (on huge pages: every step reads all of it) that all pointers of
// an adapter lead into, and the panels of its saved matrices.
struct Storage {
  HostBuffer buffer;
  std::shared_ptr<const SharedMemory> shared;  // in its place, where that was asked for
  std::byte* data = nullptr;
  WeightPanel embed_panel, head_panel;

  explicit Storage(HostBuffer bytes) : buffer(std::move(bytes)), data(buffer.data()) {}
  explicit Storage(SharedMemory bytes) : data(bytes.data()) {
    shared = std::make_shared<const SharedMemory>(std::move(bytes));
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const float* floats(int64_t offset) const {
    return offset < 0 ? nullptr : reinterpret_cast<const float*>(data + offset);
  }
};

void finish_tied_head(const LoadPlan& plan, Storage& storage) {
  if (!plan.head_pair_from_embed) return;
  const PairPlan& embed = plan.pairs[plan.pairs.size() - 1];
  const PairPlan& head = plan.pairs[plan.pairs.size() - 2];
  const size_t size = static_cast<size_t>(row_bytes(embed.dtype, 1));
  for (int token = 0; token < embed.in; ++token) {
    for (int r = 0; r < embed.rank; ++r) {
      const int64_t from = int64_t{token} * embed.rank + r, to = int64_t{r} * embed.in + token;
      std::memcpy(storage.data + head.b_t + to * static_cast<int64_t>(size),
                  storage.data + embed.a + from * static_cast<int64_t>(size), size);
    }
  }
}

// What can be computed of a layer only after reading it: differences to the base's
// biases, and, behind the last one, a tied head's second factor.
void finish_layer(const LoadPlan& plan, const AdapterBase& base, Storage& storage, int32_t layer) {
  if (layer == plan.layers) return finish_tied_head(plan, storage);
  for (int module = 0; module < kLayerModules; ++module) {
    const PairPlan& pair = plan.pairs[static_cast<size_t>(layer * kLayerModules + module)];
    if (pair.bias < 0) continue;
    const float* of_base = base.bias(base.bias_context, layer, static_cast<Module>(module));
    float* delta = reinterpret_cast<float*>(storage.data + pair.bias);
    for (int k = 0; k < pair.out; ++k) delta[k] -= of_base[k];
  }
}

WeightView view_of(const SavedMatrix& matrix, int cols, const Storage& storage, WeightPanel& panel) {
  if (matrix.offset < 0) return {};
  panel = {.data = storage.data + matrix.offset, .row_begin = 0, .row_count = matrix.rows};
  return {.dtype = matrix.dtype,
          .layout = LayoutId::kPlain,
          .rows = matrix.rows,
          .cols = cols,
          .panels = std::span(&panel, 1)};
}

SavedTensors saved_tensors(const LoadPlan& plan, const ModelConfig& config, Storage& storage) {
  SavedTensors saved;
  saved.embed = view_of(plan.embed, config.hidden, storage, storage.embed_panel);
  saved.lm_head = view_of(plan.head, config.hidden, storage, storage.head_panel);
  saved.final_norm = storage.floats(plan.final_norm);
  for (size_t norm = 0; norm < kLayerNorms; ++norm) {
    for (const int64_t offset : plan.norms[norm]) saved.norms[norm].push_back(storage.floats(offset));
  }
  saved.embed_tokens = plan.embed_tokens;
  saved.head_tokens = plan.head_tokens;
  saved.embed_rows = storage.floats(plan.embed_rows);
  saved.head_rows = storage.floats(plan.head_rows);
  return saved;
}

// All that the headers say; what the plan has beside its places goes into it.
std::shared_ptr<Adapter> build(LoadPlan& plan, const ModelConfig& config, std::shared_ptr<Storage> storage) {
  auto adapter = std::make_shared<Adapter>();
  adapter->bytes = plan.bytes;
  adapter->vocab = plan.vocab;
  const auto make = [&](const PairPlan& pair) {
    LoraPair made{.dtype = pair.dtype, .rank = pair.rank, .in = pair.in, .out = pair.out, .scaling = pair.scaling};
    if (pair.rank > 0) {
      made.a = storage->data + pair.a;
      made.b_t = storage->data + pair.b_t;
      made.a_scale = storage->floats(pair.a_scale);
      made.b_scale = storage->floats(pair.b_scale);
    }
    made.b_bias = storage->floats(pair.b_bias);
    made.bias_delta = storage->floats(pair.bias);
    return made;
  };
  const auto make_all = [&](const std::vector<PairPlan>& plans, std::vector<LoraPair>& pairs) {
    pairs.reserve(plans.size());
    for (const PairPlan& pair : plans) pairs.push_back(make(pair));
  };
  adapter->rank_max = plan.rank_max();
  make_all(plan.pairs, adapter->pairs);
  adapter->experts.experts = config.experts.count;
  make_all(plan.routers, adapter->experts.router);
  make_all(plan.shared_gates, adapter->experts.shared_gates);
  make_all(plan.expert_matrices, adapter->experts.matrices);
  adapter->saved = saved_tensors(plan, config, *storage);
  adapter->alora_invocation = std::move(plan.alora_invocation);
  for (const std::string& sentence : plan.report) adapter->report.push_back(printable(sentence));
  for (const std::string& sentence : plan.doubts) adapter->doubts.push_back(printable(sentence));
  adapter->modules = std::move(plan.modules);
  adapter->shared = storage->shared;
  adapter->storage = std::move(storage);
  return adapter;
}

struct Paths {
  std::string config;  // empty for GGUF
  std::string weights;
  bool mlx = false;  // an adapter of mlx-lm
};

Result<Paths> adapter_paths(const FileSystem& files, const std::string& path) {
  switch (files.kind(path)) {
    case PathKind::kAbsent:
      TRY(files.check_visible(path));
      return not_found(path + ": does not exist");
    case PathKind::kFile:
    case PathKind::kOther:
      if (path.ends_with(".gguf")) return Paths{"", path};
      if (is_pickle_name(path)) return pickled_adapter_error(path, base_name(path));
      return invalid_argument(
          path + ": is not an adapter; name a directory of PEFT or mlx-lm (with adapter_config.json) or a .gguf file");
    case PathKind::kDirectory:
      break;
  }
  Paths paths{join_path(path, "adapter_config.json"), join_path(path, "adapter_model.safetensors")};
  TRY(files.check_visible(paths.config));
  TRY(files.check_visible(paths.weights));
  const bool has_config = files.exists(paths.config), has_weights = files.exists(paths.weights);
  if (!has_config) {
    if (files.kind(join_path(path, "config.json")) == PathKind::kFile && !has_weights) {
      return invalid_argument(path +
                              ": is a whole model, not an adapter (it has config.json, but no adapter_config.json)");
    }
    return not_found(path + ": has no adapter_config.json, so it is not a PEFT adapter");
  }
  if (!has_weights) {
    const std::string of_mlx = join_path(path, "adapters.safetensors");
    TRY(files.check_visible(of_mlx));
    if (files.exists(of_mlx)) return Paths{paths.config, of_mlx, true};
    if (files.kind(join_path(path, "adapter_model.bin")) == PathKind::kFile) {
      return pickled_adapter_error(path, "adapter_model.bin");
    }
    return not_found(path + ": has no adapter_model.safetensors (PEFT) and no adapters.safetensors (mlx-lm)");
  }
  return paths;
}

// The headers of either kind of file.
struct Source {
  FileStamp stamp;
  std::unique_ptr<File>
      weights;  // opened once, so that headers and numbers come from one file even if the path is replaced meanwhile
  AdapterFile file;
  std::vector<std::string> foreign;  // tensors in formats we cannot compute with
  std::optional<GgufFile> gguf;
  std::vector<int64_t> cuts;  // of the weights file
};

struct OpenFiles {
  std::unique_ptr<File> config;  // null for GGUF
  std::unique_ptr<File> weights;

  FileStamp stamp() const {
    FileStamp stamp = weights->stamp();
    if (!config) return stamp;
    const FileStamp more = config->stamp();
    stamp.inode = stamp.inode * 0x9e3779b97f4a7c15u + more.inode;
    stamp.size_bytes += more.size_bytes;
    stamp.mtime_ns = std::max(stamp.mtime_ns, more.mtime_ns);
    return stamp;
  }
};

Result<OpenFiles> open_files(const FileSystem& files, const Paths& paths) {
  OpenFiles opened;
  TRY_ASSIGN(opened.weights, files.open(paths.weights));
  if (!paths.config.empty()) {
    TRY_ASSIGN(opened.config, files.open(paths.config));
  }
  return opened;
}

Result<Source> read_source(const FileSystem& files, const Paths& paths) {
  Source source;
  source.file.weights_path = paths.weights;
  TRY_ASSIGN(OpenFiles opened, open_files(files, paths));
  source.stamp = opened.stamp();
  source.weights = std::move(opened.weights);
  FileCuts cuts;
  if (paths.config.empty()) {
    TRY_ASSIGN(source.gguf, read_gguf(*source.weights, kAdapterGgufLimits));
    for (const TensorInfo& tensor : source.gguf->index.tensors) cuts.add(tensor.offset, tensor.bytes);
    source.cuts = std::move(cuts).finish(source.weights->size_bytes());
    return source;
  }
  TRY_ASSIGN(source.file.config_text, read_all(*opened.config, kMaxAdapterConfigBytes));
  TRY_ASSIGN(SafetensorsHeader header, read_safetensors(*source.weights, kMaxAdapterHeaderBytes));
  for (const TensorInfo& tensor : header.tensors) cuts.add(tensor.offset, tensor.bytes);
  for (const ForeignTensor& tensor : header.foreign) cuts.add(tensor.offset, tensor.bytes);
  source.cuts = std::move(cuts).finish(source.weights->size_bytes());
  source.file.tensors = std::move(header.tensors);
  for (ForeignTensor& tensor : header.foreign) {
    if (tensor.dtype != "F64") {
      source.foreign.push_back(std::move(tensor.name));
      continue;
    }
    source.file.tensors.push_back({.name = std::move(tensor.name),
                                   .shape = std::move(tensor.shape),
                                   .offset = tensor.offset,
                                   .bytes = tensor.bytes,
                                   .f64 = true});
  }
  if (paths.mlx) see_mlx_factors_as_rows(source.file.tensors);
  std::stable_sort(source.file.tensors.begin(), source.file.tensors.end(),
                   [](const TensorInfo& x, const TensorInfo& y) { return x.offset < y.offset; });
  return source;
}

// One that changes nothing would answer as the base under another name.
Status check_changes_something(const LoadPlan& plan, const std::string& path) {
  if (!plan.modules.empty()) return {};
  std::string why = "its config targets no module and replaces no tensor";
  constexpr std::string_view kNotApplied = "Not applied: ";
  for (const std::string& sentence : plan.report) {
    if (!sentence.starts_with(kNotApplied)) continue;
    why = sentence.substr(kNotApplied.size(), sentence.size() - kNotApplied.size() - 1);
    break;
  }
  return invalid_argument(path + ": changes nothing of this base model: " + why);
}

Result<LoadPlan> plan_source(const Source& source, const Paths& paths, const std::string& path, const AdapterBase& base,
                             const AdapterLoadOptions& options) {
  const auto plan_folder = paths.mlx ? plan_mlx : plan_peft;
  TRY_ASSIGN(LoadPlan plan, source.gguf ? plan_gguf(*source.gguf, base, options)
                                        : plan_folder(paths.config, source.file, source.foreign, base, options));
  TRY(check_changes_something(plan, path));
  return plan;
}

// Of a refusal, where that would help.
Error name_the_loose_way(Error error, const Source& source, const Paths& paths, const std::string& path,
                         const AdapterBase& base, AdapterLoadOptions options) {
  if (!std::exchange(options.strict, false)) return error;
  if (plan_source(source, paths, path, base, options).ok())
    error.message += "; with --adapter-strict=false the rest of the adapter is loaded";
  return error;
}

// An adapter that was trained can do this only by mistake.
void doubt_if_it_changes_nothing(Adapter& adapter) {
  if (changes_something(adapter)) return;
  adapter.doubts.push_back(
      "It changes nothing: in every module one of its factors, or the scaling, is zero, so it answers as the base "
      "does.");
  adapter.report.push_back(adapter.doubts.back());
}

Result<std::shared_ptr<Storage>> storage_for(const LoadPlan& plan, const AdapterLoadOptions& options,
                                             const std::string& path) {
  if (options.shared && plan.bytes > 0) {
    auto memory = SharedMemory::create("loralei-adapter", plan.bytes);
    if (memory.ok()) return std::make_shared<Storage>(*std::move(memory));
  }
  auto buffer = HostBuffer::allocate(plan.bytes);
  if (buffer.ok()) return std::make_shared<Storage>(*std::move(buffer));
  return Error{ErrorCode::kOverloaded, path + ": needs " + format_bytes(plan.bytes) +
                                           " of memory, which the system does not give now; try again later"};
}

// Layer by layer; behind the last one, which is still to be counted, what follows from
// all of them.
Status read_numbers(FilePass& pass, const LoadPlan& plan, const AdapterBase& base, const std::string& config_text,
                    Storage& storage, Adapter& adapter, Arrivals& arrivals) {
  for (int32_t layer = 0; layer <= plan.layers; ++layer) {
    TRY(pass.read_layer(layer));
    finish_layer(plan, base, storage, layer);
    if (layer < plan.layers) arrivals.advance();
  }
  TRY(pass.read_rest());
  adapter.digest = pass.digest(config_text);
  doubt_if_it_changes_nothing(adapter);
  return {};
}

Result<AdapterLoad> read_adapter(const FileSystem& files, const std::string& path, const AdapterBase& base,
                                 const AdapterLoadOptions& options, AdapterVersionId version) {
  TRY_ASSIGN(const Paths paths, adapter_paths(files, path));
  TRY_ASSIGN(Source source, read_source(files, paths));
  Result<LoadPlan> planned = plan_source(source, paths, path, base, options);
  if (!planned.ok()) return name_the_loose_way(std::move(planned).error(), source, paths, path, base, options);
  LoadPlan plan = *std::move(planned);

  if (plan.bytes > options.bytes_max) {
    return AdapterLoad{.bytes_needed = plan.bytes, .rank_max = plan.rank_max(), .stamp = source.stamp};
  }
  TRY_ASSIGN(const std::shared_ptr<Storage> storage, storage_for(plan, options, path));
  std::shared_ptr<Adapter> adapter = build(plan, base.config, storage);
  adapter->version = version;
  FilePass pass(*source.weights, std::move(source.cuts), plan, storage->data);
  const auto arrivals = std::make_shared<Arrivals>(plan.layers + 1);
  // What it has for experts is used when all of it is there.
  const AdapterEarly* const early = plan.has_experts() ? nullptr : options.early;
  if (early != nullptr) {
    std::vector<int64_t> through = pass.layer_bytes();
    std::partial_sum(through.begin(), through.end(), through.begin());
    early->begun({adapter, arrivals, std::move(through)});
  }
  Status read = read_numbers(pass, plan, base, source.file.config_text, *storage, *adapter, *arrivals);
  if (read.ok()) read = check_digest(adapter->digest, options.expected_digest, path);
  if (early != nullptr) read = early->judge(source.stamp, std::move(read));
  if (!read.ok()) {
    arrivals->fail({read.error().code, printable(read.error().message)});
    return std::move(read).error();
  }
  arrivals->advance();
  CHECK(arrivals->whole());
  adapter->change_norm = change_norm(*adapter);  // who began early does not wait for it
  return AdapterLoad{.adapter = std::move(adapter), .stamp = source.stamp};
}

Result<FileStamp> read_stamp(const FileSystem& files, const std::string& path) {
  TRY_ASSIGN(const Paths paths, adapter_paths(files, path));
  TRY_ASSIGN(const OpenFiles opened, open_files(files, paths));
  return opened.stamp();
}

// Sentences name what the files and links of others say.
template <typename T>
Result<T> with_printable_error(Result<T> result) {
  if (result.ok()) return result;
  return Error{result.error().code, printable(result.error().message)};
}

}  // namespace

Result<AdapterLoad> load_adapter(const FileSystem& files, const std::string& path, const AdapterBase& base,
                                 const AdapterLoadOptions& options, AdapterVersionId version) {
  return with_printable_error(read_adapter(files, path, base, options, version));
}

Result<AdapterLoad> load_adapter(const std::string& path, const AdapterBase& base, const AdapterLoadOptions& options,
                                 AdapterVersionId version) {
  return load_adapter(PosixFileSystem(), path, base, options, version);
}

Status check_digest(const Digest& digest, const std::string& expected, const std::string& path) {
  if (expected.empty()) return {};
  const std::string found = digest_hex(digest);
  if (found == expected) return {};
  constexpr size_t kShown = 12;
  return corrupt("the files at " + printable(path) + " are others than those that were loaded (now " +
                 found.substr(0, kShown) + ", then " + expected.substr(0, kShown) +
                 "); bring those back, or load what is there now as a new version");
}

Status check_adapter_files(const FileSystem& files, const std::string& path) {
  const auto paths = with_printable_error(adapter_paths(files, path));
  return paths.ok() ? Status() : Status(paths.error());
}

Result<FileStamp> adapter_stamp(const FileSystem& files, const std::string& path) {
  return with_printable_error(read_stamp(files, path));
}

Result<FileStamp> adapter_stamp(const std::string& path) { return adapter_stamp(PosixFileSystem(), path); }

}  // namespace loralei
