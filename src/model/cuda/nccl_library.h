// SPDX-License-Identifier: Apache-2.0
// NcclLibrary: the few functions of NCCL that are used, opened when first asked for
// (dlopen), so that a program starts, and is built, without it.
//
// Source: the C interface as NCCL's documentation has it since 2.14, which later versions
// keep: a configuration says its own size and version.
// Thread: any, immutable after open().
// Ownership: the library stays in the process once it was opened.
// Failure: open() says how to get the library; what it answers becomes a sentence.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace loralei {

struct NcclLibrary {
  using Comm = void*;
  using Code = int;  // kSuccess, kInProgress, else an error
  static constexpr Code kSuccess = 0, kInProgress = 7;
  static constexpr int kFloat = 7;  // of the types of numbers
  static constexpr int kLeastVersion = 2'14'00;
  struct UniqueId {
    char bytes[128];
  };
  // As of 2.14; what later versions have behind it is then as they have it unasked.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = kLeastVersion;
    int blocking = 0;
  };

  Code (*get_version)(int* version) = nullptr;
  Code (*get_unique_id)(UniqueId* id) = nullptr;
  Code (*init_rank)(Comm* comm, int size, UniqueId id, int rank, Config* config) = nullptr;
  Code (*all_gather)(const void* part, void* all, size_t count, int type, Comm comm, void* stream) = nullptr;
  Code (*async_error)(Comm comm, Code* error) = nullptr;
  Code (*abort)(Comm comm) = nullptr;
  const char* (*error_string)(Code code) = nullptr;

  // `name`: a file, or what the system finds by its name.
  static Result<NcclLibrary> open(const std::string& name);
};

}  // namespace loralei
