// SPDX-License-Identifier: Apache-2.0
// AdapterSourceSpec: where an adapter's files are, and which they have to be. A value
// that never changes: another path, or another name, is another source.
#pragma once

#include <string>

#include "base/ids.h"

namespace loralei {

struct AdapterSourceSpec {
  AdapterSourceId id;  // chosen by the caller, never reused
  std::string label;   // what sentences and the log call it, and nothing else
  std::string path;
  // Adapter::digest, in hex, that every load must give; empty: any.
  std::string expected_digest = {};
  // What the first load gives every later one must give, too.
  bool one_version = false;
};

}  // namespace loralei
