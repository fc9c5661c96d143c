// SPDX-License-Identifier: Apache-2.0
// A first look at a GPU, layer by layer, in seconds: each stands on those before it,
// so the first that fails says what is broken.
//
// - device: is there, can be chosen, tells its memory
// - copy: 4 MiB to it, on it and back
// - kernel: one of ours reads memory and sums it up
// - product: cuBLASLt, compared number by number
// - graph: a recorded kernel, run again and again
// - upload: a generated model of two layers (llama-nano, bf16)
// - step: a prompt and a token behind it, kernel by kernel; logits are the host's
// - recorded step: the same decode step as a graph; logits are the plain
//   step's, bit for bit
//
// One thread, whose device it changes.
// Failure: a layer's sentence; the others are tried all the same, but for a device
// that is not there and steps of a model that is not.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace loralei {

struct GpuSmokeOptions {
  int device = 0;
  std::string cache_dir;  // of the generated model
};

struct GpuSmokeLayer {
  const char* name = "";
  Result<std::string> found;  // what it saw, or the sentence
  double ms = 0;
};

// `each` is called when a layer has ended. True: all of them did what they should.
bool run_gpu_smoke(const GpuSmokeOptions& options, const std::function<void(const GpuSmokeLayer&)>& each);

}  // namespace loralei
