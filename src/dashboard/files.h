// SPDX-License-Identifier: Apache-2.0
// The files of the page for browsers, as they lie in the binary. dashboard/page/ has them
// as a person edits them; cmake/EmbedFiles.cmake makes the source of them.
//
// Thread: any. Ownership: static. Invariant: printable ASCII, by name. Failure: none.
#pragma once

#include <span>
#include <string_view>

namespace loralei {

struct EmbeddedFile {
  std::string_view name, body;
};
std::span<const EmbeddedFile> embedded_files();

}  // namespace loralei
