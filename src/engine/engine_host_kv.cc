// SPDX-License-Identifier: Apache-2.0
// By which steps the KV cache is encoded, who borrows, and how that is told.
#include <cstdio>
#include <utility>

#include "base/printable.h"
#include "engine/engine_host_parts.h"
#include "engine/kv_found_steps.h"
#include "engine/kv_steps_file.h"
#include "engine/start.h"
#include "kv/kv_coder.h"

namespace loralei {
namespace {

KvGridShape grid_shape_of(const ModelConfig& config, DType dtype) {
  return kv_grid_shape({config.layers, config.kv_heads, config.head_dim, dtype});
}

}  // namespace

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
