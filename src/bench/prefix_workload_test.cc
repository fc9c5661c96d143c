// SPDX-License-Identifier: Apache-2.0
// What an owner asks: lengths, states of applications, and texts that are shared.
#include "bench/prefix_workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace loralei {
namespace {

std::vector<PrefixRequest> requests_of(PrefixTask task, const PrefixSetup& setup, double scale, uint64_t seed,
                                       size_t count = 400) {
  return prefix_requests(AppChances::drawn(1),
                         {.setup = setup, .task = task, .scale = scale, .requests = count, .seed = seed});
}

std::vector<TokenId> tokens_of(const PrefixTexts& texts, const PrefixRequest& request) {
  std::vector<TokenId> tokens;
  for (const TextPart& part : request.prompt) texts.tell(part, tokens);
  return tokens;
}

TEST(PrefixWorkload, NothingIsLongerThanTheSetupSaysAndASeedIsTheSameRequests) {
  for (const PrefixSetup& setup : kPrefixSetups) {
    for (const PrefixTask task : {PrefixTask::kConversation, PrefixTask::kWriting}) {
      for (const double scale : {1.0, 0.25, 0.03}) {
        const auto requests = requests_of(task, setup, scale, 7);
        const auto again = requests_of(task, setup, scale, 7), other = requests_of(task, setup, scale, 8);
        const PrefixTexts texts(32000, {}, 1);
        size_t as_other = 0;
        int32_t longest = 0;
        for (size_t i = 0; i < requests.size(); ++i) {
          const PrefixRequest& one = requests[i];
          longest = std::max(longest, one.prompt_tokens());
          ASSERT_GE(one.answer_tokens, 1);
          ASSERT_LE(one.answer_tokens, scaled_length(kPrefixAnswerMost, scale));
          ASSERT_GE(one.adapter, task == PrefixTask::kWriting ? PrefixRequest::kBase : 0);
          ASSERT_LT(one.adapter, setup.adapters);
          for (const TextPart& part : one.prompt) ASSERT_GE(part.tokens, 1);
          ASSERT_EQ(tokens_of(texts, one), tokens_of(texts, again[i]));
          as_other += one.prompt_tokens() == other[i].prompt_tokens() ? 1 : 0;
        }
        EXPECT_LE(longest, scaled_length(setup.prompt_max, scale));
        const int32_t reached = task == PrefixTask::kConversation ? scaled_length(setup.prompt_max, scale) * 3 / 4 : 1;
        EXPECT_GE(longest, reached);
        EXPECT_LT(as_other, requests.size() / 2);
      }
    }
  }
}

// As a phone tells them: one in the foreground, so many open, and whoever is used is so.
TEST(PrefixWorkload, OneApplicationIsInTheForegroundAndTwentyAreOpen) {
  for (uint64_t seed = 1; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    std::map<int32_t, AppState> states;
    std::vector<int32_t> used;  // the last one last
    size_t killed = 0, by_phone = 0;
    for (const PrefixRequest& one : requests_of(PrefixTask::kConversation, kPrefixSetups[0], 1, seed, 1000)) {
      for (const PrefixRequest::Told& told : one.told) {
        states[told.app] = told.state;
        if (told.state != AppState::kKilled) continue;
        ++killed;
        const bool by_owner = told.app == used.back();
        by_phone += by_owner ? 0 : 1;
        EXPECT_TRUE(by_owner || told.app == used.front()) << "neither the last nor the one unused for longest";
        std::erase(used, told.app);
      }
      std::erase(used, one.app);
      used.push_back(one.app);
      size_t open = 0;
      for (const auto& [app, state] : states) {
        ASSERT_EQ(state == AppState::kForeground, app == one.app);
        open += state != AppState::kKilled ? 1 : 0;
      }
      ASSERT_LE(open, 20u);
    }
    EXPECT_GT(by_phone, 0u);
    EXPECT_GT(killed, by_phone);
  }
}

// A prompt goes on where the answer before it in this application ended, or is a new one.
TEST(PrefixWorkload, AConversationGoesOnUntilItWouldBeTooLong) {
  const auto requests = requests_of(PrefixTask::kConversation, kPrefixSetups[0], 1, 3);
  std::map<int32_t, TextPart> last;
  size_t goes_on = 0;
  for (const PrefixRequest& one : requests) {
    ASSERT_EQ(one.prompt.size(), 2u);
    EXPECT_EQ(one.prompt.front().tokens, requests.front().prompt.front().tokens);
    const auto [before, is_first] = last.try_emplace(one.app, TextPart{});
    if (before->second.text == one.prompt.back().text) {
      ++goes_on;
      EXPECT_GT(one.prompt.back().tokens, before->second.tokens);
    }
    before->second = one.prompt.back();
    before->second.tokens += one.answer_tokens;
  }
  EXPECT_GT(goes_on, requests.size() / 2);
  EXPECT_LT(goes_on, requests.size());
}

TEST(PrefixWorkload, ADocumentIsReadByOneAdapterAfterTheOtherAndSometimesTheBaseFirst) {
  const auto requests = requests_of(PrefixTask::kWriting, kPrefixSetups[0], 1, 3);
  std::map<uint64_t, std::vector<int32_t>> readers;
  std::map<uint64_t, int32_t> lengths;
  for (const PrefixRequest& one : requests) {
    ASSERT_EQ(one.prompt.size(), 3u);
    const TextPart& document = one.prompt[1];
    readers[document.text].push_back(one.adapter);
    EXPECT_GE(document.tokens, lengths[document.text]);
    lengths[document.text] = document.tokens;
  }
  size_t by_several = 0, base_first = 0;
  for (const auto& [document, of_it] : readers) {
    by_several += std::set<int32_t>(of_it.begin(), of_it.end()).size() > 1 ? 1 : 0;
    base_first += of_it.front() == PrefixRequest::kBase ? 1 : 0;
    EXPECT_EQ(std::count(of_it.begin() + 1, of_it.end(), PrefixRequest::kBase), 0);
    EXPECT_LE(of_it.size(), 8u);
  }
  EXPECT_GT(by_several, readers.size() / 2);
  EXPECT_GT(base_first, readers.size() / 8);
  EXPECT_LT(base_first, readers.size());
}

// By a plain reading of it: what a request begins with as an earlier one of its adapter,
// in whole blocks.
TEST(PrefixWorkload, WhatCouldBeFoundIsWhatAnEarlierRequestOfTheAdapterBeganWith) {
  const PrefixTexts texts(512, {}, 1);
  for (const PrefixTask task : {PrefixTask::kConversation, PrefixTask::kWriting}) {
    const auto requests = requests_of(task, kPrefixSetups[3], 0.25, 11, 120);
    double tokens = 0, found = 0;
    std::map<int32_t, std::vector<std::vector<TokenId>>> before;
    for (const PrefixRequest& one : requests) {
      const std::vector<TokenId> prompt = tokens_of(texts, one);
      size_t most = 0;
      for (const std::vector<TokenId>& other : before[one.adapter]) {
        const auto [at, end] = std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end());
        most = std::max(most, std::min(static_cast<size_t>(at - prompt.begin()), prompt.size() - 1));
      }
      tokens += static_cast<double>(prompt.size());
      found += static_cast<double>(most / 16 * 16);
      PrefixRequest answered = one;
      answered.prompt.back().tokens += one.answer_tokens;
      before[one.adapter].push_back(tokens_of(texts, answered));
    }
    EXPECT_GT(found, 0);
    EXPECT_DOUBLE_EQ(findable_share(requests, texts), found / tokens);
  }
}

TEST(PrefixTexts, ATextIsTheSameFromItsBeginningAndOthersDiffer) {
  std::vector<TokenId> file;
  for (TokenId token = 0; token < 1000; ++token) file.push_back(token);
  for (const PrefixTexts& texts : {PrefixTexts(32000, {}, 1), PrefixTexts(512, {}, 1), PrefixTexts(32000, file, 1)}) {
    std::vector<TokenId> all, part, other, behind = {3};
    texts.tell({5, 900}, all);
    texts.tell({5, 300}, part);
    texts.tell({6, 300}, other);
    texts.tell({5, 1}, behind);
    ASSERT_EQ(all.size(), 900u);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin()));
    EXPECT_NE(part, other);
    EXPECT_EQ(behind, (std::vector<TokenId>{3, all.front()}));
  }
  std::vector<TokenId> cut;
  PrefixTexts(32000, file, 1).tell({9, 1500}, cut);
  for (size_t i = 1; i < cut.size(); ++i) ASSERT_EQ(cut[i], (cut[i - 1] + 1) % 1000);
  std::vector<TokenId> plain;
  PrefixTexts(512, {}, 1).tell({1, 5000}, plain);
  const auto [least, most] = std::minmax_element(plain.begin(), plain.end());
  EXPECT_GE(*least, 1);
  EXPECT_LT(*most, 512);
}

}  // namespace
}  // namespace loralei
