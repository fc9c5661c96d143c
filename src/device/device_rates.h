// SPDX-License-Identifier: Apache-2.0
// What a device can do at most, as measured: the ceilings that bounds are computed
// with. A plain value.
#pragma once

namespace loralei {

struct DeviceRates {
  double read_gb_s = 0;        // its own memory, 1e9 bytes
  double product_tflop_s = 0;  // a large bf16 product; a multiply and an add each count
  double upload_gb_s = 0;      // from pinned host memory
};

}  // namespace loralei
