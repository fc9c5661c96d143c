// SPDX-License-Identifier: Apache-2.0
// One file's contents, from a hub into the folder of blobs: in pieces over several
// connections, gone on with where an earlier run was cut, checked before it has its name.
//
// Thread: one, at a time; the pieces on HubWorkers' threads.
// Ownership: borrows the workers and the network.
// Invariants: a blob has its name only when its digest is the one it is called by; what
// is not whole lies beside it as DIGEST.loralei-part (with holes; so it is not called
// DIGEST.incomplete, whose length huggingface_hub takes for what is there) with the map
// of its pieces. No more is written than the file was said to have.
// Failure: kCorrupt, after which nothing of it is kept; else what came stays.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "http/url.h"
#include "hub/hub_workers.h"

namespace loralei {

struct HubBlob {
  std::string path;    // in the repository, for messages
  std::string digest;  // 64 digits: SHA-256; 40: SHA-1 of a git blob
  int64_t bytes = 0;
};

struct HubBlobFetch {
  const HubNetwork& network;
  HubWorkers& workers;
  std::string repository;
  HttpUrl url;
  HubBlob blob;
  std::string folder;             // of blobs
  std::atomic<int64_t>& arrived;  // bytes of all files, of earlier runs too
  int64_t counted = 0;            // of them this file's
  std::function<void()> tick;     // called by this thread meanwhile; may be null
};
Status fetch_hub_blob(const HubBlobFetch& fetch);

// Of what an earlier run left: bytes that need not be fetched again.
int64_t hub_blob_arrived(const std::string& folder, const HubBlob& blob, int64_t piece_bytes);

}  // namespace loralei
