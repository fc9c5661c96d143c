// SPDX-License-Identifier: Apache-2.0
// AdapterManifest: which files an adapter of a store is made of, and its name by content.
//
// As text, of which the SHA-256 is the adapter's digest in the store:
//
//   loralei adapter 1
//   <SHA-256 of the file, in hex> <bytes> <name>      a line each, by name, at least one
//
// So whoever has the same files has the same digest, whatever order they came in, and
// what came from elsewhere is checked before anything in it is read.
//
// Thread: values. Ownership: of their own. Invariants: manifest_of(parse(text)) is text:
// there is one spelling. Names are those that adapters' files have (check_adapter_file),
// and never a path. Failure: kInvalidArgument with a sentence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

inline constexpr size_t kManifestBytesMost = 64 * 1024;

struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;  // in hex
  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

struct AdapterManifest {
  std::vector<StoredFile> files;  // by name
  int64_t bytes() const;
  std::string text() const;
  std::string digest() const;
  // What a loader is given, below the adapter's folder: its one .gguf file, or "".
  std::string weights_name() const;

  // Sorts the files; an error where they cannot be an adapter.
  static Result<AdapterManifest> make(std::vector<StoredFile> files);
  static Result<AdapterManifest> parse(std::string_view text);
  friend bool operator==(const AdapterManifest&, const AdapterManifest&) = default;
};

bool is_sha256_hex(std::string_view text);  // 64 of 0-9 and a-f
std::string sha256_hex(std::string_view bytes);
// A file of this name may be in an adapter; the sentence says which may.
Status check_adapter_file(std::string_view name);

// How an adapter of the store is named where a path could stand: "store:" and its digest.
inline constexpr std::string_view kStorePrefix = "store:";

}  // namespace loralei
