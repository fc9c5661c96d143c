// SPDX-License-Identifier: Apache-2.0
#include "formats/foreign_files.h"

#include <algorithm>
#include <cctype>

namespace loralei {

bool is_lfs_pointer(std::string_view head) { return head.starts_with("version https://git-lfs.github.com/spec/"); }

bool is_lfs_pointer(std::span<const std::byte> head) {
  return is_lfs_pointer(std::string_view(reinterpret_cast<const char*>(head.data()), head.size()));
}

Error lfs_pointer_error(const std::string& path) {
  return corrupt(path + ": is a Git LFS pointer, which stands for the file itself; run `git lfs pull` in its folder");
}

bool is_pickle_name(std::string_view path) {
  return path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".ckpt");
}

Error pickled_adapter_error(const std::string& path, const std::string& file) {
  // What is to be typed is no place for another's quotes.
  const bool plain = std::all_of(file.begin(), file.end(),
                                 [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
  const std::string name = plain ? file : "adapter_model.bin";
  return unsupported(path + ": holds its weights as a Python pickle (" + name +
                     "), which can run any code when it is read and is never opened; convert it once, in its folder: "
                     "python -c \"import torch; from safetensors.torch import save_file; save_file({k: "
                     "v.contiguous().clone() for k, v in torch.load('" +
                     name + "', map_location='cpu', weights_only=True).items()}, 'adapter_model.safetensors')\"");
}

}  // namespace loralei
