// SPDX-License-Identifier: Apache-2.0
#include "formats/base_model.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

// Every model of the golden folder opens; what it holds is checked by the golden test of the engine.
TEST(BaseModel, GoldenModelsOpen) {
  const PosixFileSystem files;
  const std::string folder = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models";
  auto entries = files.list(folder);
  if (!entries.ok()) GTEST_SKIP() << "no golden models: " << entries.error().message;
  for (const DirEntry& entry : entries.value()) {
    auto model = open_base_model(folder + "/" + entry.name);
    EXPECT_TRUE(model.ok()) << entry.name << ": " << (model.ok() ? "" : model.error().message);
  }
}

}  // namespace
}  // namespace loralei
