// SPDX-License-Identifier: Apache-2.0
// Adapter: one immutable loaded copy of a LoRA adapter ("version"), as kernels and
// the model need it.
//
// Thread: immutable after load; any reader.
// Ownership: owns its bytes (a Grant of memory/ accounts for them); the cache
// holds it by shared_ptr, users through AdapterPin.
// Invariants: every pair fits the base's shapes; ranks within limits.h; all numbers
// finite; something of the base is changed (`modules` is not empty).
// Failure: load_adapter answers a sentence naming file, tensor or config key. Whatever
// the files say, errors and `report` are printable().
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/arrivals.h"
#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "formats/model_config.h"
#include "ops/args.h"
#include "ops/expert_pairs.h"
#include "sys/file.h"
#include "sys/shared_memory.h"

namespace loralei {

// Adapter::digest is the SHA-256 over the config's text and the weights file in parts:
//
//   length of adapter_config.json (0 for GGUF), its bytes,
//   then for each part of the weights file, in the file's order: length, PageHash of it
//
// with lengths as 8 bytes, the lowest first. The file is cut at the beginning and the end
// of every tensor of its header that has any bytes: what stands before the first one is a
// part, each tensor is one, and what lies between two or behind the last; none is empty,
// and every byte is in one of them. So the parts can be read in any order, and files with
// the same bytes have the same digest.
struct Adapter {
  AdapterVersionId version;
  Digest digest{};    // over config and weights, as below; names the KV identity. Never the adapter's name.
  int64_t bytes = 0;  // memory held
  int rank_max = 0;
  int vocab = 0;  // logits this adapter's rows produce; the base's unless resized
  std::vector<LoraPair>
      pairs;  // [layers * kLayerModules + 2]: layer modules, then kLmHead, kEmbed; rank 0 and null where absent
  ExpertPairs experts;  // of a base with experts
  SavedTensors saved;
  std::vector<TokenId> alora_invocation;  // empty: ordinary LoRA
  std::vector<std::string> report;        // what was applied, notes ("base name differs"), one sentence each
  std::vector<std::string> doubts;        // those of the report that whoever runs the server should see
  std::map<std::string, int> modules;     // target name -> count, for display ("q_proj" -> 22)
  double change_norm = 0;                 // change.h; of the pairs alone
  std::shared_ptr<const void> storage;    // owns everything the pointers above lead to
  // The memory in which that lies, where other processes may be given it
  // (AdapterLoadOptions::shared); null: it is this process's alone.
  std::shared_ptr<const SharedMemory> shared;

  const LoraPair& pair(int layer, Module module) const {
    return pairs[static_cast<size_t>(layer) * kLayerModules + static_cast<size_t>(module)];
  }
  const LoraPair& head_pair() const { return pairs[pairs.size() - 2]; }
  const LoraPair& embed_pair() const { return pairs[pairs.size() - 1]; }
};

// An adapter whose numbers are still being read, in the order in which a pass over the
// model needs them: what the embedding has with layer 0, and as the last of layers + 1
// pieces final norm and what the head has. Where `there()` has been seen to be n, the
// arrays of the first n are as they stay. digest, report and doubts may be read when it
// is whole, and change_norm when the load has answered; all else of the adapter is as it
// stays from the beginning.
struct AdapterArriving {
  std::shared_ptr<const Adapter> adapter;    // the one that the load answers at its end
  std::shared_ptr<const Arrivals> arrivals;  // fails with the load's sentence
  std::vector<int64_t> bytes_through;        // [layers + 1] of the weights file, up to and with each
};

// For those who want an adapter before its last layer is there. Called by the loader,
// both or none.
struct AdapterEarly {
  // Its headers are checked and its memory is there, and none of its numbers.
  std::function<void(AdapterArriving&&)> begun;
  // All is read, or something was wrong; before the last piece counts. Answers how the
  // load ends. `of`: the files that were read.
  std::function<Status(const FileStamp& of, Status read)> judge;
};

struct AdapterLoadOptions {
  // False: what we do not apply goes to `report` instead of being an error
  // (--adapter-strict=false).
  bool strict = true;
  // Keep the low-rank factors of linear modules and of the head as int8
  // (ops/lora_factors.h) whatever the file holds (--adapter-quant int8). Embedding
  // factors, biases and replaced tensors stay as they are.
  bool int8 = false;
  // Into memory that helper processes may be given (Adapter::shared), which is all taken
  // at once; where the system has none it is read into other memory.
  bool shared = false;
  std::string expected_digest = {};     // AdapterSourceSpec's: other files are an error, before the last layer counts
  int64_t bytes_max = INT64_MAX;        // room in memory: what needs more is not read (AdapterLoad::bytes_needed)
  const AdapterEarly* early = nullptr;  // outlives the load; null: nobody wants it early
};

// What load_adapter answers: an adapter, or how much memory it would have taken.
struct AdapterLoad {
  std::shared_ptr<const Adapter> adapter;  // null: its headers were parsed and nothing was allocated, for want of room
  int64_t bytes_needed = 0;                // then more than AdapterLoadOptions::bytes_max, and exact; otherwise 0
  int rank_max = 0;                        // then that of its pairs
  // Of the very files it was read from, as adapter_stamp() makes it; nullopt: not known.
  std::optional<FileStamp> stamp;
};

// What the loader must know of the base: shapes, biases (for bias="all"), and how the
// embedding is tied.
struct AdapterBase {
  ModelConfig config;
  // What it is called: its path and the names it is served under. An adapter made for
  // another name is loaded, with a doubt; none are known: with no doubt.
  std::vector<std::string> names;
  // The base's bias of a layer's module in Hugging Face row order, for bias_delta: f32
  // [out] or null where the base has none. May be null itself when biases are not at hand
  // (inspecting); an adapter that replaces biases is refused then.
  const float* (*bias)(const void* context, int layer, Module module) = nullptr;
  const void* bias_context = nullptr;
};

// Whether there are files at `path` that can be an adapter; the sentence says what
// is there instead.
Status check_adapter_files(const FileSystem& files, const std::string& path);

// ok, or that the files at `path` are others than those that had the digest `expected`
// (in hex; empty: any will do).
Status check_digest(const Digest& digest, const std::string& expected, const std::string& path);

// Reads a PEFT directory (adapter_config.json + adapter_model.safetensors) or a GGUF LoRA
// file. Blocking; called on a loader thread. Want of room is no error; every error is
// final, more room would not help.
Result<AdapterLoad> load_adapter(const FileSystem& files, const std::string& path, const AdapterBase& base,
                                 const AdapterLoadOptions& options, AdapterVersionId version);
// The same on the machine's file system.
Result<AdapterLoad> load_adapter(const std::string& path, const AdapterBase& base, const AdapterLoadOptions& options,
                                 AdapterVersionId version);
// One stamp for all files that make up the adapter at `path`, without reading them:
// size is their sum, mtime that of the newest, inode a mix. A changed stamp
// means a new version.
Result<FileStamp> adapter_stamp(const FileSystem& files, const std::string& path);
Result<FileStamp> adapter_stamp(const std::string& path);

}  // namespace loralei
