// SPDX-License-Identifier: Apache-2.0
// The text model inside of a model that reads images as well
// ("...ForConditionalGeneration"): its part of config.json, and its tensors under the
// names that they have when it stands alone.
//
// Pure functions, any thread.
// Invariants: what belongs to the other parts is left out, never computed with.
// Failure: corrupt, unsupported; the sentence names key or tensor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/family.h"
#include "formats/json_util.h"
#include "formats/safetensors.h"
#include "formats/tensor_index.h"

namespace loralei {

struct InnerModel {
  Json config;                     // as of a text model that stands alone
  const Family* family = nullptr;  // whose config it is
};

// `root`: a config.json whose class is `wrapper`. Old files have the keys of the text
// model beside those of the others, new ones in "text_config".
Result<InnerModel> inner_model_of(const Json& root, const Family& wrapper, const std::string& path);

// Renames the text model's tensors, and drops those of other parts; what was dropped
// becomes a note.
Status unwrap_tensors(TensorIndex& index, std::vector<ForeignTensor>& foreign, std::vector<std::string>& notes,
                      const std::string& place);

}  // namespace loralei
