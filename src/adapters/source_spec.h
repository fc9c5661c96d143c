// SPDX-License-Identifier: Apache-2.0
// AdapterSourceSpec: where an adapter's files are. A value that never changes: other
// files, or another name, are another source.
#pragma once

#include <string>

#include "base/ids.h"

namespace loralei {

struct AdapterSourceSpec {
  AdapterSourceId id;  // chosen by the caller, never reused
  std::string label;   // what sentences and the log call it, and nothing else
  std::string path;
};

}  // namespace loralei
