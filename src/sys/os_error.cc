// SPDX-License-Identifier: Apache-2.0
#include "sys/os_error.h"

#include <cerrno>
#include <system_error>

namespace loralei {

std::string errno_text(int errno_value) { return std::generic_category().message(errno_value); }

Error os_error(const std::string& action, const std::string& path, int errno_value) {
  ErrorCode code = ErrorCode::kIo;
  if (errno_value == ENOENT || errno_value == ENOTDIR) code = ErrorCode::kNotFound;
  if (errno_value == EACCES || errno_value == EPERM) code = ErrorCode::kForbidden;
  return {code, action + " '" + path + "': " + errno_text(errno_value)};
}

Error end_of_file(const std::string& path, int64_t offset_bytes, size_t wanted_bytes, size_t got_bytes) {
  return corrupt("'" + path + "' ends at byte " + std::to_string(offset_bytes + static_cast<int64_t>(got_bytes)) +
                 " while " + std::to_string(wanted_bytes) + " bytes from byte " + std::to_string(offset_bytes) +
                 " on were expected; the file is cut short or was changed while being read");
}

}  // namespace loralei
