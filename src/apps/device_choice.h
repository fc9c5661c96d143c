// SPDX-License-Identifier: Apache-2.0
// --device: where steps are computed. Any thread. Failure: a sentence for a name that is none, and for a GPU in a build
// without GPU support; whether the device is there is found out when the engine starts.
#pragma once

#include <string>

#include "engine/device_backend.h"

namespace loralei {

// auto and cpu: empty (the cores); cuda:N or cuda (0): a GPU, with `enforce_eager` (--enforce-eager) without recorded
// graphs. Auto is the cores as long as GPUs are not proved.
Result<DeviceFactory> choose_device(const std::string& name, bool enforce_eager = false);

}  // namespace loralei
