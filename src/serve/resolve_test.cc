// SPDX-License-Identifier: Apache-2.0
#include "serve/resolve.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

class ResolveTest : public testing::Test {
 protected:
  ResolveTest() {
    for (const char* name : {"law", "m:med", "7b:tax"})
      EXPECT_TRUE(catalogue->add({name, std::string("/") + name, "", AdapterSource::kCommandLine, 0, 0}, false).ok());
  }
  // The adapters that a request's `model` comes to, or the status it is refused with.
  std::string resolve(const std::string& model) {
    ModelRef ref;
    ref.model = model;
    auto found = resolve_model(ref, bases, *catalogue);
    return found.ok() ? "[" + found->label + "]" : std::to_string(found.error().status);
  }
  const std::vector<std::string> bases = {"m", "m:7b"};
  std::unique_ptr<Catalogue> catalogue = make_memory_catalogue();
};

TEST_F(ResolveTest, NamesOfBasesAndAdaptersAreWhole) {
  for (const char* base : {"", "m", "m:7b"}) EXPECT_EQ(resolve(base), "[]") << base;
  EXPECT_EQ(resolve("law"), "[law]");
  EXPECT_EQ(resolve("m:law"), "[law]");
  EXPECT_EQ(resolve("m:med"), "[m:med]");
  for (const char* unknown : {"m7b", "m:", "m:7b:", "m/law", "mlaw", "m:la", "m:laws", "m: law", "law:m", "m:m",
                              "x:law", "M", "M:law", ":law", "m::law", "7b", "m:7bx", "med"})
    EXPECT_EQ(resolve(unknown), "404") << unknown;
}

// One base's name may begin another's.
TEST_F(ResolveTest, AnAdapterIsFoundBehindEveryNameOfTheBase) {
  EXPECT_EQ(resolve("m:7b:law"), "[law]");
  EXPECT_EQ(resolve("m:7b:tax"), "[7b:tax]");
  EXPECT_EQ(resolve("m:7b:7b:tax"), "[7b:tax]");
  EXPECT_EQ(resolve("m:7b:nobody"), "404");
}

}  // namespace
}  // namespace loralei
