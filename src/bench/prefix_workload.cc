// SPDX-License-Identifier: Apache-2.0
#include "bench/prefix_workload.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/limits.h"
#include "bench/engine_client.h"
#include "workload/draws.h"

namespace loralei {
namespace {

constexpr size_t kOwned = 30, kAlive = 20;  // applications that ask, and of these that stay open
constexpr double kClosed = 0.2;             // of those that are left: by the owner
constexpr double kGoesOn = 0.25;            // of closed ones that are opened again
constexpr double kAdapterLaw = 1;           // the i-th adapter is as likely as i^-1
constexpr uint64_t kAssistantText = 1;      // what all prompts begin with
constexpr double kAssistantTokens = 64;

// Lengths in tokens before they are scaled: log-normal. What people say to assistants and
// are answered lies between published instruction sets (20 to 40 tokens in, 66 to 525
// out) and what is pasted into chats of computers (ShareGPT: 161 in, 338 out). Documents
// are as XSum's, 430 tokens in the mean.
struct Lengths {
  double median, sigma;
};
constexpr Lengths kSaid = {.median = 50, .sigma = 1}, kAnswered = {.median = 130, .sigma = 0.8};
constexpr Lengths kDocument = {.median = 380, .sigma = 0.5}, kWrittenOn = {.median = 30, .sigma = 0.8};
constexpr Lengths kQuestion = {.median = 16, .sigma = 0.4}, kRewritten = {.median = 40, .sigma = 0.8};
constexpr double kQuestionMost = 40;
constexpr double kSameAgain = 0.5;                 // of a document's uses: by the adapter before, once more
constexpr double kGrows = 0.5;                     // of a document's uses but the first
constexpr uint64_t kUsesLeast = 3, kUsesMost = 8;  // of a document

class Owner {
 public:
  Owner(const AppChances& chances, const PrefixWorkloadOptions& options)
      : options_(options),
        walk_(chances, kOwned, options.seed),
        apps_(walk_.owned()),
        popular_(power_law(static_cast<size_t>(options.setup.adapters), kAdapterLaw)),
        lengths_(stream_seed(options.seed, "lengths")),
        adapters_(stream_seed(options.seed, "adapters")),
        thinks_(stream_seed(options.seed, "thinks")),
        closes_(stream_seed(options.seed, "closes")),
        most_(scaled_length(options.setup.prompt_max, options.scale)),
        assistant_tokens_(std::min(scaled(kAssistantTokens), most_ / 4)) {
    for (App& app : apps_) {
      app.adapter = drawn_adapter();
      app.base_first = adapters_.uniform() < 0.5;
    }
  }

  PrefixRequest next() {
    PrefixRequest request;
    const size_t number = walk_.next();
    request.app = static_cast<int32_t>(number);
    request.think = exponential_draw(thinks_);
    open(number, request);
    if (options_.task == PrefixTask::kConversation) {
      say(apps_[number], request);
    } else {
      write(apps_[number], request);
    }
    return request;
  }

 private:
  struct App {
    int32_t adapter = 0;
    bool base_first = false;
    bool closed = false;
    uint64_t text = 0;                      // of its conversation or document
    int32_t tokens = 0;                     // of it, so far
    uint64_t uses = 0;                      // writing: of this document, still to come
    bool fresh = false;                     // writing: nobody has read it
    int32_t reader = PrefixRequest::kBase;  // writing: who read it last
  };

  int32_t scaled(double tokens) const { return scaled_length(tokens, options_.scale); }
  int32_t drawn(const Lengths& lengths) {
    return scaled(lengths.median * std::exp(lengths.sigma * normal_draw(lengths_)));
  }
  int32_t drawn_adapter() { return static_cast<int32_t>(popular_.draw(adapters_)); }

  // In the foreground from now on; told as whoever manages applications would.
  void open(size_t number, PrefixRequest& request) {
    const auto tell = [&](size_t app, AppState state) { request.told.push_back({static_cast<int32_t>(app), state}); };
    if (!open_.empty() && open_.front() == number) return;
    const auto close = [&](size_t place) {
      const size_t app = open_[place];
      tell(app, AppState::kKilled);
      apps_[app].closed = true;
      open_.erase(open_.begin() + static_cast<int64_t>(place));
    };
    if (!open_.empty() && closes_.uniform() < kClosed) {
      close(0);
    } else if (!open_.empty()) {
      tell(open_.front(), AppState::kBackground);
    }
    std::erase(open_, number);
    open_.insert(open_.begin(), number);
    App& app = apps_[number];
    if (app.closed && closes_.uniform() >= kGoesOn) app.tokens = 0, app.uses = 0;
    app.closed = false;
    tell(number, AppState::kForeground);
    if (open_.size() > kAlive) close(kAlive);
  }

  void begin_text(App& app) {
    app.text = next_text_++;
    app.tokens = 0;
  }

  void say(App& app, PrefixRequest& request) {
    const int32_t room = most_ - assistant_tokens_;
    const int32_t said = std::min(drawn(kSaid), room);
    if (app.tokens == 0 || app.tokens + said > room) begin_text(app);
    app.tokens += said;
    request.adapter = app.adapter;
    request.prompt = {{kAssistantText, assistant_tokens_}, {app.text, app.tokens}};
    request.answer_tokens = std::min(drawn(kAnswered), scaled(kPrefixAnswerMost));
    app.tokens += request.answer_tokens;
  }

  void write(App& app, PrefixRequest& request) {
    const int32_t room = std::max(1, most_ - assistant_tokens_ - scaled(kQuestionMost));
    if (app.uses == 0) {
      begin_text(app);
      app.tokens = std::min(drawn(kDocument), room);
      app.uses = kUsesLeast + below_draw(lengths_, kUsesMost - kUsesLeast + 1);
      app.fresh = true;
    } else if (lengths_.uniform() < kGrows) {
      app.tokens = std::min(app.tokens + drawn(kWrittenOn), room);
    }
    --app.uses;
    const bool again = !app.fresh && app.reader != PrefixRequest::kBase && adapters_.uniform() < kSameAgain;
    if (!again) app.reader = app.fresh && app.base_first ? PrefixRequest::kBase : drawn_adapter();
    request.adapter = app.reader;
    app.fresh = false;
    const int32_t question = std::min(drawn(kQuestion), scaled(kQuestionMost));
    request.prompt = {{kAssistantText, assistant_tokens_}, {app.text, app.tokens}, {next_text_++, question}};
    request.answer_tokens = std::min(drawn(kRewritten), scaled(kPrefixAnswerMost));
  }

  const PrefixWorkloadOptions options_;
  AppWalk walk_;
  std::vector<App> apps_;
  std::vector<size_t> open_;  // the last used first
  const WeightedDraw popular_;
  Prng lengths_, adapters_, thinks_, closes_;
  const int32_t most_, assistant_tokens_;
  uint64_t next_text_ = kAssistantText + 1;
};

}  // namespace

int32_t PrefixRequest::prompt_tokens() const {
  int32_t tokens = 0;
  for (const TextPart& part : prompt) tokens += part.tokens;
  return tokens;
}

int32_t scaled_length(double tokens, double scale) {
  return std::max(1, static_cast<int32_t>(std::lround(tokens * scale)));
}

double findable_share(std::span<const PrefixRequest> requests, const PrefixTexts& texts) {
  std::set<std::pair<int32_t, uint64_t>> held;  // by adapter: blocks, and all before each
  double tokens = 0, found = 0;
  std::vector<TokenId> prompt;
  for (const PrefixRequest& request : requests) {
    prompt.clear();
    for (const TextPart& part : request.prompt) texts.tell(part, prompt);
    tokens += static_cast<double>(prompt.size());
    const size_t asked = prompt.size() - 1;  // the last one is computed
    TextPart answered = request.prompt.back();
    prompt.resize(prompt.size() - static_cast<size_t>(answered.tokens));
    answered.tokens += request.answer_tokens;
    texts.tell(answered, prompt);
    uint64_t hash = 1;
    bool goes_on = true;
    for (size_t end = kKvBlockTokens; end <= prompt.size(); end += kKvBlockTokens) {
      for (size_t at = end - kKvBlockTokens; at < end; ++at)
        hash = derived_seed(hash, static_cast<uint32_t>(prompt[at]));
      const bool is_new = held.emplace(request.adapter, hash).second;
      goes_on = goes_on && !is_new && end <= asked;
      if (goes_on) found += kKvBlockTokens;
    }
  }
  return tokens > 0 ? found / tokens : 0;
}

std::vector<PrefixRequest> prefix_requests(const AppChances& chances, const PrefixWorkloadOptions& options) {
  Owner owner(chances, options);
  std::vector<PrefixRequest> requests;
  for (size_t i = 0; i < options.requests; ++i) requests.push_back(owner.next());
  return requests;
}

void PrefixTexts::tell(const TextPart& part, std::vector<TokenId>& tokens) const {
  const uint64_t seed = derived_seed(seed_ + (part.text >> 32), static_cast<uint32_t>(part.text));
  const size_t from = text_.empty() ? 0 : static_cast<size_t>(seed % text_.size());
  const int first = first_plain_token(vocab_);
  for (size_t at = 0; at < static_cast<size_t>(part.tokens); ++at) {
    const double drawn = text_.empty() ? uniform_at(seed, 0, at) : 0;
    tokens.push_back(text_.empty() ? first + static_cast<TokenId>(drawn * (vocab_ - first))
                                   : text_[(from + at) % text_.size()]);
  }
}

}  // namespace loralei
