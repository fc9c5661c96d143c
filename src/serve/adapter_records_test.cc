// SPDX-License-Identifier: Apache-2.0
// Adapters that were loaded over HTTP, from one server to the next, with a registry in a
// real file.
#include "serve/adapter_records.h"

#include <gtest/gtest.h>

#include <thread>

#include "serve/recorded_test_util.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST_F(RecordedTest, WhatWasLoadedIsThereAfterARestartAndWhatWasUnloadedIsNot) {
  EXPECT_TRUE(begin().added.empty());
  EXPECT_EQ(load("one", "one").body, "Success: LoRA adapter 'one' added successfully.");
  EXPECT_EQ(load("two", "two", false, R"(,"pinned":true)").status, 200);
  EXPECT_EQ(load("two", "two").status, 400) << "as without a registry";
  EXPECT_EQ(load("other", "one").status, 200);
  EXPECT_EQ(unload("two").status, 200);
  EXPECT_EQ(send("DELETE", "/v1/adapters/other", "").status, 200);
  EXPECT_EQ(unload("two").status, 404);
  EXPECT_EQ(begin().added, (Names{"one"}));
  EXPECT_EQ(root_of("one"), path("one"));
  EXPECT_EQ(get("/v1/models/two").status, 404);
  EXPECT_EQ(BodyJson::parse(get("/v1/adapters").body)["data"][0]["source"], "http");
  for (const AdapterCommand& command : engine_now().commands)
    EXPECT_EQ(command.action, AdapterAction::kAdd) << "nothing is read before its first use";
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("model":"one")")).status, 200);
  EXPECT_EQ(load("one", "two", true).status, 200);
  EXPECT_EQ(begin().added, (Names{"one"}));
  EXPECT_EQ(root_of("one"), path("two")) << "what was loaded last";
}

TEST_F(RecordedTest, ALoadThatCannotBeKeptIsUndone) {
  begin();
  EXPECT_EQ(load("one", "one", false, R"(,"pinned":true)").status, 200);
  fs::rename(file(), file() + ".away");
  HttpResponse answer = load("two", "two");
  EXPECT_EQ(answer.status, 500) << answer.body;
  EXPECT_NE(error_of(answer, "message").find("could not be kept"), std::string::npos) << answer.body;
  EXPECT_EQ(get("/v1/models/two").status, 404);
  EXPECT_TRUE(soon([&] { return drops() == 1; })) << "the engine forgets it";
  answer = load("one", "two", true);
  EXPECT_EQ(answer.status, 500) << answer.body;
  EXPECT_EQ(root_of("one"), path("one")) << "the one before";
  EXPECT_TRUE(soon([&] { return drops() == 2; }));
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("model":"one")")).status, 200);
  answer = unload("one");
  EXPECT_EQ(answer.status, 500) << answer.body;
  EXPECT_EQ(root_of("one"), path("one"));
  fs::rename(file() + ".away", file());
  EXPECT_EQ(load("two", "two").status, 200);
  EXPECT_EQ(load("one", "two", true).status, 200);
  EXPECT_EQ(begin().added, (Names{"one", "two"}));
  EXPECT_EQ(root_of("one"), path("two"));
}

TEST_F(RecordedTest, OtherFilesAreNotServedUnderTheOldDigest) {
  begin();
  EXPECT_EQ(load("one", "one").status, 200);
  EXPECT_EQ(load("two", "two").status, 200);
  write("two", "{ }");
  fs::remove_all(path("one"));
  write("one", "{\"r\": 4}");
  versions = {{path("one"), "another digest"}};
  AdapterService::Rescan found = begin();
  EXPECT_EQ(found.added, (Names{"one", "two"})) << "two was read again, and found to be the same";
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("'one@1' of the registry is not served: the files at"), std::string::npos);
  EXPECT_NE(found.notes[0].find("are others than those that were loaded"), std::string::npos);
  const BodyJson rows = BodyJson::parse(get("/v1/adapters").body)["data"];
  EXPECT_EQ(rows[0]["state"], "failed") << "which its requests are told";
  EXPECT_EQ(rows[1]["state"], "ready");
  EXPECT_EQ(load("one", "one").status, 400) << "it has its name still";
  fs::remove_all(path("one"));
  found = begin();
  EXPECT_EQ(found.added, (Names{"two"}));
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("No adapter found at"), std::string::npos) << found.notes[0];
  write("one", "{}");
  versions.clear();
  found = begin();
  EXPECT_EQ(found.added, (Names{"one", "two"})) << "it was in the file all the time";
  EXPECT_TRUE(found.notes.empty());
}

TEST_F(RecordedTest, WhatIsNotServedCanBeLoadedAgainOrUnloaded) {
  begin();
  EXPECT_EQ(load("one", "one").status, 200);
  EXPECT_EQ(load("two", "two").status, 200);
  for (const char* name : {"one", "two"}) fs::remove_all(path(name));
  EXPECT_EQ(begin().notes.size(), 2u);
  EXPECT_EQ(unload("one").status, 200);
  EXPECT_EQ(unload("one").status, 404);
  write("two", "{}");
  EXPECT_EQ(load("two", "two").status, 200) << "nothing is in its place";
  const AdapterService::Rescan found = begin();
  EXPECT_EQ(found.added, (Names{"two"}));
  EXPECT_TRUE(found.notes.empty());
}

TEST_F(RecordedTest, AFolderThatIsAllowedNoLongerIsNotRead) {
  begin();
  EXPECT_EQ(load("one", "one").status, 200);
  options.adapter_roots = {path("two")};
  const AdapterService::Rescan found = begin();
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("outside of the folders that --adapter-dir allows"), std::string::npos);
  EXPECT_EQ(get("/v1/models/one").status, 404);
}

TEST_F(RecordedTest, AdaptersOfAnotherBaseStayInTheFile) {
  begin("base-1");
  EXPECT_EQ(load("one", "one").status, 200);
  EXPECT_EQ(load("two", "two").status, 200);
  const AdapterService::Rescan found = begin("base-2");
  EXPECT_TRUE(found.added.empty());
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("another base model: 'one', 'two'"), std::string::npos) << found.notes[0];
  const HttpResponse answer = load("one", "one");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(error_of(answer, "message").find("of another base model"), std::string::npos) << answer.body;
  EXPECT_EQ(unload("one").status, 404);
  EXPECT_EQ(load("two", "two", true).status, 200) << "replaced by who says so";
  EXPECT_EQ(begin("base-1").added, (Names{"one"}));
}

TEST_F(RecordedTest, TheCommandLineWinsAndTheRecordStays) {
  begin();
  EXPECT_EQ(load("one", "one").status, 200);
  command_line = {{"one", path("two")}};
  AdapterService::Rescan found = begin();
  EXPECT_TRUE(found.added.empty());
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("the command line names it"), std::string::npos);
  EXPECT_EQ(root_of("one"), path("two"));
  command_line.clear();
  EXPECT_EQ(begin().added, (Names{"one"}));
  EXPECT_EQ(root_of("one"), path("one"));
}

TEST_F(RecordedTest, OneRequestAtATimeChangesAName) {
  begin();
  engine_now().hold_replies = true;
  HttpResponse first;
  std::thread loading([&] { first = load("one", "one"); });
  ASSERT_TRUE(engine_now().wait_for_commands(1));
  const HttpResponse second = load("one", "two");
  EXPECT_EQ(second.status, 429) << second.body;
  EXPECT_NE(error_of(second, "message").find("is being loaded or unloaded by another request"), std::string::npos);
  EXPECT_EQ(unload("one").status, 429);
  engine_now().hold_replies = false;
  engine_now().release_replies();
  loading.join();
  EXPECT_EQ(first.status, 200) << first.body;
  for (int i = 0; i < 20; ++i) {  // an answered name is free at once
    EXPECT_EQ(unload("one").status, 200);
    EXPECT_EQ(load("one", "two").status, 200);
  }
  EXPECT_EQ(begin().added, (Names{"one"}));
}

TEST_F(RecordedTest, WhatTheEngineWasNotToldToForgetIsKept) {
  begin();
  EXPECT_EQ(load("one", "one").status, 200);
  engine_now().next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
  EXPECT_EQ(unload("one").status, 429);
  engine_now().next_command = {};
  EXPECT_EQ(root_of("one"), path("one"));
  EXPECT_EQ(begin().added, (Names{"one"}));
}

TEST_F(RecordedTest, ALoadThatFailsIsNotKept) {
  begin();
  write("broken", "{}");
  EXPECT_EQ(load("x", "broken").status, 400);
  EXPECT_EQ(load("x", "one").status, 200) << "the name is free";
  EXPECT_EQ(begin().added, (Names{"x"}));
}

}  // namespace
}  // namespace loralei
