// SPDX-License-Identifier: Apache-2.0
// Files that often lie where a model's or an adapter's own should: Git LFS pointers
// and Python pickles. Told by name and by what to do, because every reader would
// call them damaged.
//
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

// Whether a file that begins so is the few lines that git keeps in place of a large file.
bool is_lfs_pointer(std::string_view head);
bool is_lfs_pointer(std::span<const std::byte> head);
Error lfs_pointer_error(const std::string& path);

// By its name: .bin, .pt, .pth, .ckpt.
bool is_pickle_name(std::string_view path);
// `file`: the pickle's name in its folder; `path`: what was asked for.
Error pickled_adapter_error(const std::string& path, const std::string& file);

}  // namespace loralei
