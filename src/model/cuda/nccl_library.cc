// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/nccl_library.h"

#include <dlfcn.h>

#include <vector>

namespace loralei {
namespace {

std::string words(int version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Where the system looks (LD_LIBRARY_PATH among it), then where the build found CUDA.
std::vector<std::string> places_of(const std::string& name) {
  std::vector<std::string> places = {name};
#ifdef LORALEI_NCCL_DIR
  if (name.find('/') == std::string::npos) places.push_back(LORALEI_NCCL_DIR "/" + name);
#endif
  return places;
}

}  // namespace

Result<NcclLibrary> NcclLibrary::open(const std::string& name) {
  void* file = nullptr;
  std::string refused;
  for (const std::string& place : places_of(name)) {
    file = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (file != nullptr) break;
    refused += (refused.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (file == nullptr) {
    return unsupported("Ranks on several GPUs need " + name + " of NVIDIA's NCCL (" + refused +
                       "): install NCCL 2.14 or later, or name its folder in LD_LIBRARY_PATH.");
  }
  NcclLibrary library;
  std::string missing;
  const auto look_up = [&](const char* function, auto& place) {
    place = reinterpret_cast<std::remove_reference_t<decltype(place)>>(dlsym(file, function));
    if (place == nullptr && missing.empty()) missing = function;
  };
  look_up("ncclGetVersion", library.get_version);
  look_up("ncclGetUniqueId", library.get_unique_id);
  look_up("ncclCommInitRankConfig", library.init_rank);
  look_up("ncclAllGather", library.all_gather);
  look_up("ncclCommGetAsyncError", library.async_error);
  look_up("ncclCommAbort", library.abort);
  look_up("ncclGetErrorString", library.error_string);
  int version = 0;
  if (library.get_version != nullptr && library.get_version(&version) == kSuccess && version < kLeastVersion)
    return unsupported(name + " is NCCL " + words(version) + ": install " + words(kLeastVersion) + " or later.");
  if (!missing.empty()) return unsupported(name + " has no " + missing + ": install NCCL 2.14 or later.");
  return library;
}

}  // namespace loralei
