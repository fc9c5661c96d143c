// SPDX-License-Identifier: Apache-2.0
#include "serve/resolve.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

class ResolveTest : public testing::Test {
 protected:
  ResolveTest() {
    for (const char* name : {"law", "m:med", "7b:tax"})
      EXPECT_TRUE(
          catalogue->add({name, std::string("/") + name, "", AdapterOrigin::kCommandLine, 0, {}, nullptr}).ok());
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

// As POST /lora-adapters sets them: for who names neither an adapter nor, by an empty
// field, the base alone.
TEST_F(ResolveTest, DefaultsAreForRequestsThatNameNoAdapter) {
  const std::vector<AdapterRef> defaults = {{"law", -1, 0.5f}, {"m:med", -1, 2.0f}};
  const auto with = [&](const ModelRef& ref) {
    auto found = resolve_model(ref, bases, *catalogue, defaults);
    if (!found.ok()) return std::to_string(found.error().status) + " " + found.error().message;
    std::string text = found->shown + ":";
    for (size_t i = 0; i < found->adapters.size(); ++i)
      text += " " + found->entries[i].name + "*" + std::to_string(found->adapters[i].scale).substr(0, 3);
    return text;
  };
  EXPECT_EQ(with({}), "law+m:med: law*0.5 m:med*2.0");
  EXPECT_EQ(with({.model = "m:7b", .adapters = {}, .adapters_param = ""}), "m:7b: law*0.5 m:med*2.0");
  ModelRef same;
  same.adapters = defaults;
  same.adapters_param = "lora";
  EXPECT_EQ(with({}), with(same)) << "as if the request had named them";
  EXPECT_EQ(with({.model = "7b:tax", .adapters = {}, .adapters_param = ""}), "7b:tax: 7b:tax*1.0");
  ModelRef off;
  off.adapters = {{"7b:tax", -1, 0.0f}};
  off.adapters_param = "lora";
  EXPECT_EQ(with(off), "7b:tax:") << "scale 0 is the base";
  ModelRef none;
  none.names_none = true;
  EXPECT_EQ(with(none), "m:");
  catalogue->remove("law");
  EXPECT_EQ(with({}).substr(0, 23), "404 The adapter `law`, ") << "never the base instead";
  EXPECT_EQ(with(none), "m:");
}

}  // namespace
}  // namespace loralei
