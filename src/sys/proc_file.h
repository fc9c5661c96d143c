// SPDX-License-Identifier: Apache-2.0
// Small text files of /proc and /sys, whose size is not known before they are
// read. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

Result<std::string> read_proc_file(const std::string& path);  // at most 1 MiB, the rest is cut off
// The number behind "Name:" in lines of the form "Name:   123 kB", in bytes.
std::optional<int64_t> field_kib(std::string_view text, std::string_view name);
// A decimal number at the start of `text`, after blanks; nullopt if there is none
// or it does not fit.
std::optional<int64_t> leading_number(std::string_view text);

}  // namespace loralei
