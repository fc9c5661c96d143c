// SPDX-License-Identifier: Apache-2.0
// Any bytes as a manifest: what is taken has one spelling, and names that are no paths.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "store/adapter_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto manifest = AdapterManifest::parse(text);
  if (!manifest.ok()) {
    CHECK(!manifest.error().message.empty());
    return 0;
  }
  CHECK(manifest->text() == text && !manifest->files.empty());
  for (const StoredFile& file : manifest->files) {
    CHECK(is_sha256_hex(file.sha256) && file.bytes >= 0);
    CHECK(file.name.find('/') == std::string::npos && file.name.front() != '.');
  }
  return 0;
}
