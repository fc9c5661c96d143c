// SPDX-License-Identifier: Apache-2.0
// A GGUF model that llama.cpp's llama-gguf-split cut into parts ("m-00001-of-00003.gguf",
// ...), read as one.
//
// Thread: any; reads files.
// Ownership: a plain value.
// Invariants: index names every part in its order, tensors say in which they lie; the
// metadata is the first part's.
// Failure: as read_gguf(), and where a part is missing, is not the one its name
// says or the parts do not hold the tensors they claim; a file that is a later part
// names the first.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/gguf.h"

namespace loralei {

// `path`: a whole model, or the first of its parts; the others lie beside it.
Result<GgufFile> read_gguf_parts(const FileSystem& files, const std::string& path);

}  // namespace loralei
