// SPDX-License-Identifier: Apache-2.0
// Keys as they are typed, and files of them.
// Thread: pure. Failure: a sentence, "" where a key can be used.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "wire/key_file.h"

namespace loralei {

bool is_blank(const std::string& text);  // as "$KEY" of a variable that is not set
std::string refuse_key(const std::string& key);
// --keys FILE; none without one. A file that other users may read is told in the log.
Result<std::vector<NamedKey>> read_named_keys(const std::string& path, LogSink& log);

}  // namespace loralei
