// SPDX-License-Identifier: Apache-2.0
#include "route/replica_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

RoutedRequest some_request(Prng& random) {
  RoutedRequest request;
  request.adapter = AdapterSourceId{random.below(8)};
  request.rank = request.adapter.value == 0 ? 0 : 8 << (request.adapter.value % 4);
  request.prompt_tokens = static_cast<int32_t>(1 + random.below(500));
  request.cached_tokens = static_cast<int32_t>(random.below(static_cast<uint64_t>(request.prompt_tokens) + 1));
  request.answer_tokens = static_cast<int32_t>(1 + random.below(300));
  return request;
}

// The same from the requests themselves, as the headers say it.
StepFeatures naive(const std::vector<RoutedRequest>& requests, bool prefill) {
  StepFeatures step;
  std::map<AdapterSourceId, int32_t> adapters;
  for (const RoutedRequest& request : requests) {
    const int32_t rows = prefill ? std::max(1, request.prompt_tokens - request.cached_tokens) : 1;
    (prefill ? step.prefill_rows : step.decode_rows) += rows;
    if (!prefill) step.decode_attended += request.prompt_tokens + request.answer_tokens / 2;
    for (int32_t row = 0; prefill && row < rows; ++row) step.prefill_attended += request.prompt_tokens - row;
    ++step.logits_rows;
    if (request.adapter == AdapterSourceId()) continue;
    adapters[request.adapter] = request.rank;
    step.lora_rows += rows;
    step.lora_row_ranks += int64_t{rows} * request.rank;
  }
  for (const auto& [adapter, rank] : adapters) {
    ++step.adapters;
    step.rank_sum += rank;
    step.rank_max = std::max(step.rank_max, rank);
  }
  return step;
}

// Prompts of those that wait, a row of each of the others.
StepFeatures naive_next(const std::vector<RoutedRequest>& waiting, const std::vector<RoutedRequest>& running) {
  const StepFeatures prompts = naive(waiting, true), decodes = naive(running, false);
  std::vector<RoutedRequest> all = waiting;
  all.insert(all.end(), running.begin(), running.end());
  StepFeatures step = naive(all, false);  // for the adapters
  step.prefill_rows = prompts.prefill_rows, step.prefill_attended = prompts.prefill_attended;
  step.decode_rows = decodes.decode_rows, step.decode_attended = decodes.decode_attended;
  step.lora_rows = prompts.lora_rows + decodes.lora_rows;
  step.lora_row_ranks = prompts.lora_row_ranks + decodes.lora_row_ranks;
  return step;
}

TEST(ReplicaLoad, SumsAreThoseOfTheRequestsThatAreThere) {
  const auto seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  ReplicaLoad load;
  std::map<RequestId, std::pair<RoutedRequest, bool>> there;  // and whether it waits
  uint64_t last = 0;
  for (int i = 0; i < 4000 && !testing::Test::HasFailure(); ++i) {
    if (there.empty() || random.below(100) < (i < 2000 ? 40u : 30u)) {
      const RequestId id{++last};
      const RoutedRequest request = some_request(random);
      load.sent(id, request);
      there[id] = {request, true};
    } else {
      auto one = there.begin();
      std::advance(one, static_cast<std::ptrdiff_t>(random.below(there.size())));
      if (random.below(2) == 0) {
        load.answers(one->first);
        one->second.second = false;
      } else {
        load.ended(one->first);
        there.erase(one);
      }
    }
    std::vector<RoutedRequest> all, waiting, running;
    int64_t context = 0, left = 0;
    for (const auto& [id, entry] : there) {
      all.push_back(entry.first);
      (entry.second ? waiting : running).push_back(entry.first);
      context += entry.first.prompt_tokens + entry.first.answer_tokens;
      left += std::max(1, entry.first.prompt_tokens - entry.first.cached_tokens) + entry.first.answer_tokens;
    }
    load.all().check();
    load.waiting().check();
    load.running().check();
    EXPECT_EQ(load.all().context_tokens(), context);
    EXPECT_EQ(load.all().tokens_left(), left);
    EXPECT_EQ(load.running().requests(), std::ssize(all) - std::ssize(waiting));
    EXPECT_EQ(load.all().decode_step(), naive(all, false));
    EXPECT_EQ(load.waiting().prefill_step(), naive(waiting, true));
    EXPECT_EQ(load.running().decode_step(), naive(running, false));
    EXPECT_EQ(load.next_step(), naive_next(waiting, running));
    const RoutedRequest more = some_request(random);
    all.push_back(more);
    waiting.push_back(more);
    EXPECT_EQ(load.all().decode_step(&more), naive(all, false));
    EXPECT_EQ(load.waiting().prefill_step(&more), naive(waiting, true));
    EXPECT_EQ(load.next_step(&more), naive_next(waiting, running));
  }
}

}  // namespace
}  // namespace loralei
