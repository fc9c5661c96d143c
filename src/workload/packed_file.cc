// SPDX-License-Identifier: Apache-2.0
#include "workload/packed_file.h"

namespace loralei {

Status check_not_packed(const std::string& path) {
  if (!path.ends_with(".zst")) return {};
  return unsupported("'" + path + "' is packed. Unpack it with `zstd -d " + path + "`, and name the file that comes.");
}

}  // namespace loralei
