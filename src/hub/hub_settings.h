// SPDX-License-Identifier: Apache-2.0
// HubSettings: which hub, who asks it, and where what comes from it lies: as the
// variables of Hugging Face's own library say.
//
// Thread: read at start, before other threads exist; then a plain value.
// Ownership: values. Invariant: the token stands in no message.
// Failure: a sentence that names the variable or the file.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "http/proxy.h"
#include "http/url.h"
#include "sys/file.h"

namespace loralei {

inline constexpr const char* kDefaultHubEndpoint = "https://huggingface.co";

struct HubSettings {
  HttpUrl endpoint;       // its target without a slash at its end
  std::string token;      // empty: none
  std::string cache_dir;  // .../hub
  bool offline = false;
  Variable variable;  // of proxies, as it was at the start
  // Of a download.
  int connections = 4;
  int64_t piece_bytes = int64_t{64} << 20;
  int64_t first_wait_ms = 500;  // before a request is repeated; each further time twice as long
  int tries = 4;                // without a byte more
};

// HF_ENDPOINT; HF_TOKEN, else the file HF_TOKEN_PATH or HF_HOME/token; HF_HUB_CACHE, else
// HF_HOME/hub; HF_HUB_OFFLINE. HF_HOME is XDG_CACHE_HOME/huggingface, else
// ~/.cache/huggingface.
Result<HubSettings> read_hub_settings(const FileSystem& files, const Variable& variable);

}  // namespace loralei
