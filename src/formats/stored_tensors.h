// SPDX-License-Identifier: Apache-2.0
// The matrices of a quantised checkpoint: the tensors that make up each become one
// (TensorInfo::stored).
//
// Thread: called by one thread. It reads small tensors: the order of groups (g_idx),
// biases of zeros, shapes that are stored beside packed numbers.
// Numbers are kept as they are stored. Symmetric int4 is given as q4_0 and int8 as q8_0,
// which mean just that; int4 with zero points as int4g and e4m3 as fp8g (tensor/dtype.h).
// Matrices of experts in MXFP4 ("mlp.experts.gate_up_proj_blocks" and "_scales", of all
// experts of a layer, rows of gate and up in turn) are given as mxfp4.
// Failure: a sentence with the matrix and the tensor (corrupt: missing, of a wrong shape
// or format; unsupported: what could not be held as it is).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "formats/model_tensors.h"
#include "formats/quant_config.h"
#include "formats/safetensors.h"
#include "sys/file.h"

namespace loralei {

// Of `model`, parts of expected matrices are taken out of index and foreign, and the
// matrices put into the index; what is left is for check_tensors(). Matrices that are
// stored as plain numbers stay. Answers how many were put together; `place` is for
// messages.
Result<int> join_stored_tensors(const FileSystem& files, const QuantConfig& quant,
                                const std::vector<ExpectedTensor>& expected, SafetensorsModel& model,
                                std::vector<std::string>& notes, const std::string& place);

}  // namespace loralei
