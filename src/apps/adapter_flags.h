// SPDX-License-Identifier: Apache-2.0
// The adapters that --adapter, --lora and --lora-modules name, in every form in which
// other servers' users write them.
//
// Thread: one, at start.
// Ownership: values in and out; borrows the FileSystem.
// Invariants: no weights are read; what find_adapters() answers is at its path,
// as an adapter, when it answers.
// Failure: a sentence with the flag, what was typed and what was found there.
#pragma once

#include <string>
#include <vector>

#include "apps/hub_flags.h"
#include "base/result.h"
#include "sys/file.h"
#include "sys/rooted_file_system.h"

namespace loralei {

struct AdapterFlag {
  std::string name, path;
};

// One value of a flag: NAME=PATH; PATH (its last part is the name, without .gguf);
// several of these between commas, as llama.cpp takes them, unless there is a file of
// that very name; or vLLM's {"name": ..., "path": ...}, whose "base_model_name" may say
// anything: there is one base. "~/" is the home folder wherever the path begins. Where
// there is no such path, ORG/NAME is the adapter of that name on a hub.
Result<std::vector<AdapterFlag>> parse_adapter_flag(const FileSystem& files, const std::string& text);

// The adapters of all values of `flag`, their files looked at. The one .gguf file of
// a folder stands for the folder. Each becomes a root of `adapter_files`, which reads
// `files` and is what they are looked at through. `hub`: what finds or fetches those
// that are named so; without it they are paths.
Result<std::vector<AdapterFlag>> find_adapters(const FileSystem& files, RootedFileSystem& adapter_files,
                                               const std::string& flag, const std::vector<std::string>& values,
                                               const HubAdapters& hub = nullptr);

}  // namespace loralei
