// SPDX-License-Identifier: Apache-2.0
// By which steps the KV cache is encoded, who borrows, and how that is told.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/printable.h"
#include "base/units.h"
#include "engine/engine_host_parts.h"
#include "engine/kv_found_steps.h"
#include "engine/kv_steps_file.h"
#include "engine/start.h"
#include "kv/kv_coder.h"
#include "model/linear_state.h"

namespace loralei {
namespace {

KvGridShape grid_shape_of(const ModelConfig& config, DType dtype) {
  return kv_grid_shape({kv_layers(config), config.kv_heads, config.head_dim, dtype});
}

}  // namespace

// A state is of one text up to one position: what keeps or tells of single blocks has no
// use for it, and a device and several ranks have none.
Status check_states(const EngineHostOptions& options, const ModelConfig& config) {
  if (state_floats(config) == 0) return {};
  const auto refuse = [](const std::string& what) -> Status {
    return unsupported(
        "This model's linear layers keep a state of a whole text instead of KV, which does not go together with " +
        what);
  };
  if (options.device) return refuse("a device yet; leave out --device, or say --device cpu.");
  if (options.tensor_parallel > 1) return refuse("--tensor-parallel yet; start without it.");
  if (options.engine.kv_sharing != KvSharing::kExact) return refuse("--kv-sharing; start without it, or with exact.");
  if (!options.engine.kv_dir.empty()) return refuse("--kv-dir, which keeps single blocks; start without it.");
  if (options.kv_events != nullptr) return refuse("--kv-events, which tells of single blocks; start without it.");
  return {};
}

// A device's cache has one table for all layers, and so have those of several ranks.
std::string whole_windows_for(const EngineHostOptions& options) {
  if (options.whole_windows) return "it was started so";
  if (options.device) return "a device has the KV cache";
  if (options.tensor_parallel > 1) return "--tensor-parallel has a KV cache in every rank";
  if (options.engine.kv_sharing != KvSharing::kExact) return "--kv-sharing encodes blocks of all layers";
  if (!options.engine.kv_dir.empty()) return "--kv-dir keeps blocks of all layers";
  if (options.kv_events != nullptr) return "--kv-events tells of blocks of all layers";
  return {};
}

KvTables kv_tables_of(const EngineHostOptions& options, const ModelConfig& config, const ModelLimits& limits) {
  if (config.sliding.empty() || !whole_windows_for(options).empty()) return {};
  if (state_floats(config) > 0) return {};  // a prefix is found by its state, with all blocks
  return kv_tables(config.sliding, limits.max_model_len, limits.rows_max);
}

// Where windows could cost less.
std::string EngineHost::note_of_windows() const {
  const std::string why = whole_windows_for(parts_->options);
  const std::vector<int32_t>& sliding = parts_->file.config.sliding;
  if (why.empty() || !kv_tables(sliding, parts_->plan.max_model_len, 1).has_windows()) return {};
  return "The KV cache holds whole texts in layers that attend to a sliding window too, since " + why + ".";
}

std::string EngineHost::describe_states() const {
  const MemoryPlan& plan = parts_->plan;
  const int32_t copies = plan.state_slots - plan.max_sequences;
  std::string text = "states of " + std::to_string(plan.max_sequences) + " sequences";
  if (copies > 0) text += " and " + std::to_string(copies) + " prefixes";
  return text + " take " + format_bytes(plan.state_bytes) + ", " + format_bytes(plan.state_bytes / plan.state_slots) +
         " each; ";
}

std::string EngineHost::describe_kv() const {
  const KvTables& tables = parts_->kv_tables;
  const int64_t blocks = parts_->plan.kv_blocks;
  std::string text = std::string("KV in ") + dtype_info(parts_->kv_dtype).name;
  if (parts_->plan.state_slots > 0) text = describe_states() + text;
  if (!tables.has_windows()) return text + " holds " + std::to_string(blocks * kKvBlockTokens) + " tokens\n";
  const auto& sliding = parts_->file.config.sliding;
  const auto slide = std::count_if(sliding.begin(), sliding.end(), [](int32_t window) { return window > 0; });
  const int64_t block_bytes = parts_->plan.kv_bytes / blocks, most = tables.blocks_most(parts_->plan.max_model_len);
  return text + " of " + std::to_string(slide) + " of " + std::to_string(sliding.size()) +
         " layers is that of a window of " + std::to_string(tables.window) + " tokens: such a sequence takes " +
         format_bytes(most * block_bytes) + " at most, and there is room for " + std::to_string(blocks / most) +
         " of them\n";
}

// What calibrate-kv has measured of this model, where that is used: steps of a float
// cache that is to be encoded, and who may borrow. Once the weights are there.
void EngineHost::use_kv_steps(EngineParts& engine, LogSink& log) {
  Parts& parts = *parts_;
  const KvSharing sharing = parts.options.engine.kv_sharing;
  const bool encodes = sharing >= KvSharing::kBounded && !has_vector_scale(parts.kv_dtype);
  if (!encodes && sharing < KvSharing::kBorrow) return;
  const ModelConfig& config = parts.file.config;
  FoundKvSteps found = find_kv_steps(PosixFileSystem(), parts.options.model_path, parts.options.cache_dir,
                                     parts.weights->fingerprint(), grid_shape_of(config, parts.kv_dtype));
  for (const std::string& note : found.notes) log.log(LogLevel::kWarning, note);
  engine.kv_steps = std::move(found.steps);
  if (sharing == KvSharing::kBorrow) plan_lending(engine, log);
  if (!encodes) return;
  if (!engine.kv_steps) return use_found_steps(engine, log);
  if (parts.options.engine.kv_delta == KvDelta::kPaper) {
    parts.kv_steps_text =
        "steps of " + found.path + ", and what differences by other bounds do to answers nobody measured";
    return;
  }
  const KvQuality quality = engine.kv_steps->farthest();
  char measured[128];
  std::snprintf(measured, sizeof measured, ": %.2f %% of next tokens as exact, mean KL %.4f, on text that was %s",
                quality.agreement * 100, quality.mean_kl,
                engine.kv_steps->held_out_tokens > 0 ? "held out" : "searched as well");
  parts.kv_steps_text = "steps of " + found.path + measured;
}

// Where nobody measured any: with --kv-dir those that an earlier process found, or the
// next one has those that this one finds.
void EngineHost::use_found_steps(EngineParts& engine, LogSink& log) {
  Parts& parts = *parts_;
  parts.kv_steps_text = "steps of a quarter of each channel's spread";
  if (const std::string& dir = parts.options.engine.kv_dir; !dir.empty()) {
    const std::string& fingerprint = parts.weights->fingerprint();
    const std::string path = kv_found_steps_path(dir, fingerprint, parts.kv_dtype);
    KvFoundSteps found =
        read_kv_found_steps(PosixFileSystem(), path, fingerprint, grid_shape_of(parts.file.config, parts.kv_dtype));
    if (!found.note.empty()) log.log(LogLevel::kWarning, found.note);
    engine.kv_grid = std::move(found.grid);
    if (engine.kv_grid) {
      parts.kv_steps_text += ", as found by an earlier server and kept in " + printable(path);
    } else {
      engine.keep_kv_grid = [fingerprint, path](const KvGrid& grid) {
        return write_kv_found_steps(grid, fingerprint, path);
      };
    }
  }
  parts.kv_steps_text +=
      "; nobody measured what that does to answers (loralei calibrate-kv finds what the model allows)";
}

void EngineHost::plan_lending(EngineParts& engine, LogSink& log) {
  Parts& parts = *parts_;
  if (engine.kv_steps) engine.kv_lending = kv_lending(*engine.kv_steps, parts.file.config.hidden);
  parts.streams = engine.kv_lending.streams;
  if (engine.kv_lending.empty()) {
    log.log(LogLevel::kWarning,
            "--kv-sharing borrow: of no adapter it is known that it may borrow; loralei calibrate-kv MODEL --text FILE "
            "--adapter NAME measures how many layers each may");
    return;
  }
  for (const KvAdapterSteps& adapter : engine.kv_steps->adapters) {
    const auto layers = engine.kv_lending.layers.find(adapter.digest);
    if (layers == engine.kv_lending.layers.end()) continue;
    parts.lending_text +=
        (parts.lending_text.empty() ? "" : ", ") + printable(adapter.name) + " " + std::to_string(layers->second);
  }
}

std::string EngineHost::describe_kv_sharing() const {
  const KvSharing sharing = parts_->options.engine.kv_sharing;
  if (sharing == KvSharing::kExact) return {};
  std::string text = "prefixes that nobody uses are encoded (--kv-sharing ";
  text += kKvSharingNames[static_cast<size_t>(sharing)];
  text += has_vector_scale(parts_->kv_dtype) ? "), bit for bit\n" : "), with " + parts_->kv_steps_text + "\n";
  if (parts_->options.engine.kv_delta == KvDelta::kPaper)
    text += "of these, differences from the base's have the absolute bounds of MobiLoRA (--kv-delta paper)\n";
  if (!parts_->lending_text.empty())
    text += "of " + std::to_string(parts_->file.config.layers) +
            " layers adapters read the base's of a prompt: " + parts_->lending_text + "\n";
  return text;
}

}  // namespace loralei
