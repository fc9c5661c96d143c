// SPDX-License-Identifier: Apache-2.0
#include "serve/key_ledger.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace loralei {
namespace {

constexpr double kMinuteNs = 60e9;

// Of a minute's limit; level below 0: a debt.
struct Bucket {
  int64_t limit = 0;  // 0: none
  double level = 0;
  int64_t at_ns = 0;

  void set_limit(int64_t wanted, int64_t now_ns) {
    fill(now_ns);
    if (wanted != limit && limit == 0) level = static_cast<double>(wanted);  // full at first
    limit = wanted;
    at_ns = now_ns;
    level = std::min(level, static_cast<double>(limit));
  }
  void fill(int64_t now_ns) {
    if (limit > 0) level = std::min(static_cast<double>(limit), level + rate() * static_cast<double>(now_ns - at_ns));
    at_ns = now_ns;
  }
  double rate() const { return static_cast<double>(limit) / kMinuteNs; }
  // Seconds until so much is there.
  double wait_s(double amount) const { return std::max(0.0, (amount - level) / rate() * 1e-9); }
};

// Upwards, but for what rounding has added.
int64_t round_up(double value) { return static_cast<int64_t>(std::ceil(value - 1e-6)); }
int64_t whole_seconds(double wait_s) { return std::max<int64_t>(1, round_up(wait_s)); }

// As OpenAI writes times: "6m0s", "1.2s", "20ms".
std::string duration(double seconds) {
  const int64_t ms = round_up(seconds * 1e3);
  if (ms < 1000) return std::to_string(ms) + "ms";
  const int64_t minutes = ms / 60'000, tenths = (ms % 60'000 + 99) / 100;
  std::string text = minutes > 0 ? std::to_string(minutes) + "m" : "";
  text += std::to_string(tenths / 10);
  if (minutes == 0 && tenths % 10 != 0) text += "." + std::to_string(tenths % 10);
  return text + "s";
}

void put_headers(const Bucket& bucket, const char* what, HttpHeaders& headers) {
  if (bucket.limit == 0) return;
  const auto put = [&](const char* kind, std::string value) {
    headers.emplace_back(std::string("x-ratelimit-") + kind + "-" + what, std::move(value));
  };
  put("limit", std::to_string(bucket.limit));
  put("remaining", std::to_string(static_cast<int64_t>(std::max(0.0, std::floor(bucket.level)))));
  put("reset", duration(bucket.wait_s(static_cast<double>(bucket.limit))));
}

KeyRefusal too_many(std::string message, double wait_s) {
  KeyRefusal refusal{api_error_of_status(429, std::move(message)), {}};
  refusal.error.code = "rate_limit_exceeded";
  refusal.headers.emplace_back("Retry-After", std::to_string(whole_seconds(wait_s)));
  return refusal;
}

std::string in_time(double wait_s) { return " Try again in " + std::to_string(whole_seconds(wait_s)) + " s."; }

}  // namespace

struct KeyTicket::Account {
  explicit Account(std::string name, bool labelled) : labelled(labelled) { figures.name = std::move(name); }
  HttpHeaders headers(int64_t now_ns) {
    requests.fill(now_ns);
    tokens.fill(now_ns);
    HttpHeaders out;
    put_headers(requests, "requests", out);
    put_headers(tokens, "tokens", out);
    return out;
  }
  void count_refusal(KeyLimit limit) { ++figures.refused[static_cast<size_t>(limit)]; }

  const bool labelled;
  std::mutex mutex;
  // Guarded by it; the name is not written.
  Bucket requests, tokens;
  int64_t max_running = 0;
  KeyFigures figures;
};

KeyTicket::KeyTicket(std::shared_ptr<Account> account, const Clock& clock)
    : account_(std::move(account)), clock_(clock) {}

KeyTicket::~KeyTicket() { used(0, 0); }

const std::string& KeyTicket::name() const { return account_->figures.name; }

HttpHeaders KeyTicket::headers() const {
  const std::lock_guard lock(account_->mutex);
  return account_->headers(clock_.now_ns());
}

std::optional<KeyRefusal> KeyTicket::take_tokens(int64_t prompt, int64_t answer, bool stated) {
  const std::lock_guard lock(account_->mutex);
  Bucket& bucket = account_->tokens;
  if (bucket.limit == 0) return std::nullopt;
  bucket.fill(clock_.now_ns());
  if (!stated) answer = std::min({answer, kAssumedAnswer, std::max<int64_t>(0, bucket.limit - prompt)});
  const int64_t wanted = prompt + answer;
  const std::string asks = "This request may take " + std::to_string(wanted) + " tokens (" + std::to_string(prompt) +
                           " in the prompt, " + std::to_string(answer) + " for the answer), and the key '" + name() +
                           "' may use " + std::to_string(bucket.limit) + " a minute";
  if (wanted > bucket.limit) {
    account_->count_refusal(KeyLimit::kTokens);
    KeyRefusal refusal{api_error_of_status(413, asks + "; send a shorter prompt or ask for fewer tokens."), {}};
    refusal.error.code = "rate_limit_exceeded";
    return refusal;
  }
  if (const double wait_s = bucket.wait_s(static_cast<double>(wanted)); wait_s > 0) {
    account_->count_refusal(KeyLimit::kTokens);
    const auto left = static_cast<int64_t>(std::floor(bucket.level));
    return too_many(
        asks + ", of which " + std::to_string(std::max<int64_t>(0, left)) + " are left now." + in_time(wait_s), wait_s);
  }
  bucket.level -= static_cast<double>(wanted);
  taken_ = wanted;
  return std::nullopt;
}

void KeyTicket::used(int64_t prompt, int64_t output) {
  const std::lock_guard lock(account_->mutex);
  if (std::exchange(settled_, true)) return;
  --account_->figures.running;
  account_->figures.prompt_tokens += prompt;
  account_->figures.output_tokens += output;
  Bucket& bucket = account_->tokens;
  if (bucket.limit == 0) return;
  bucket.fill(clock_.now_ns());
  bucket.level += static_cast<double>(taken_ - prompt - output);
  bucket.level = std::min(bucket.level, static_cast<double>(bucket.limit));
}

void KeyTicket::refused_adapter() {
  const std::lock_guard lock(account_->mutex);
  account_->count_refusal(KeyLimit::kAdapter);
}

KeyLedger::KeyLedger(const Clock& clock) : clock_(clock) {}
KeyLedger::~KeyLedger() = default;

namespace {

void add(const KeyFigures& from, KeyFigures& to) {
  to.running += from.running;
  to.requests += from.requests;
  to.prompt_tokens += from.prompt_tokens;
  to.output_tokens += from.output_tokens;
  for (size_t i = 0; i < to.refused.size(); ++i) to.refused[i] += from.refused[i];
}

}  // namespace

void KeyLedger::set_keys(const std::vector<NamedKey>& keys) {
  const std::lock_guard lock(mutex_);
  std::set<std::string_view> names;
  for (const NamedKey& key : keys) names.insert(key.name);
  std::erase_if(accounts_, [&](const auto& one) {
    if (names.contains(one.first)) return false;
    const std::lock_guard held(one.second->mutex);
    if (one.second->labelled) {
      --labelled_;
    } else {
      if (!others_) others_.emplace();
      add(one.second->figures, *others_);
      others_->running -= one.second->figures.running;
    }
    return true;
  });
  for (const NamedKey& key : keys) {
    auto& account = accounts_[key.name];
    if (!account) {
      account = std::make_shared<KeyTicket::Account>(key.name, labelled_ < kLabelled);
      labelled_ += account->labelled ? 1 : 0;
    }
    const std::lock_guard held(account->mutex);
    account->requests.set_limit(key.requests_per_minute, clock_.now_ns());
    account->tokens.set_limit(key.tokens_per_minute, clock_.now_ns());
    account->max_running = key.max_running;
  }
}

KeyLedger::Entry KeyLedger::enter(const std::string& name) {
  std::shared_ptr<KeyTicket::Account> account;
  {
    const std::lock_guard lock(mutex_);
    const auto found = accounts_.find(name);
    if (found == accounts_.end()) return {};  // taken out of the file meanwhile
    account = found->second;
  }
  Entry entry;
  const std::lock_guard lock(account->mutex);
  Bucket& bucket = account->requests;
  const int64_t now_ns = clock_.now_ns();
  bucket.fill(now_ns);
  const double wait_s = bucket.limit > 0 ? bucket.wait_s(1) : 0;
  if (account->max_running > 0 && account->figures.running >= account->max_running) {
    account->count_refusal(KeyLimit::kRunning);
    entry.refusal = too_many("The key '" + name + "' may have " + std::to_string(account->max_running) +
                                 " requests at once, and they are running. Try again when one has ended.",
                             1);
  } else if (wait_s > 0) {
    account->count_refusal(KeyLimit::kRequests);
    entry.refusal = too_many("The key '" + name + "' may send " + std::to_string(bucket.limit) +
                                 " requests a minute, and has sent them." + in_time(wait_s),
                             wait_s);
  } else {
    if (bucket.limit > 0) bucket.level -= 1;
    ++account->figures.requests;
    ++account->figures.running;
    entry.ticket = std::make_shared<KeyTicket>(account, clock_);
  }
  entry.headers = account->headers(now_ns);
  return entry;
}

std::vector<KeyFigures> KeyLedger::figures() const {
  const std::lock_guard lock(mutex_);
  std::vector<KeyFigures> out;
  std::optional<KeyFigures> others = others_;
  for (const auto& [name, account] : accounts_) {
    const std::lock_guard held(account->mutex);
    if (account->labelled) {
      out.push_back(account->figures);
    } else {
      if (!others) others.emplace();
      add(account->figures, *others);
    }
  }
  if (!others) return out;
  others->name = kOtherKeys;
  out.push_back(std::move(*others));
  return out;
}

std::string key_metrics(const std::vector<KeyFigures>& keys) {
  std::string page;
  const auto family = [&](const char* type, const std::string& name, const char* help) {
    page += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  };
  const auto sample = [&](const std::string& name, const std::string& labels, int64_t value) {
    page += name + "{" + labels + "} " + std::to_string(value) + "\n";
  };
  const auto each = [&](const char* type, const std::string& name, const char* help, int64_t KeyFigures::*value) {
    family(type, name, help);
    for (const KeyFigures& key : keys) sample(name, "key=\"" + key.name + "\"", key.*value);
  };
  each("counter", "loralei_key_requests_total", "Requests of a key that were taken in.", &KeyFigures::requests);
  each("counter", "loralei_key_prompt_tokens_total", "Prompt tokens of a key's admitted requests.",
       &KeyFigures::prompt_tokens);
  each("counter", "loralei_key_generation_tokens_total", "Tokens generated for a key.", &KeyFigures::output_tokens);
  each("gauge", "loralei_key_requests_running", "Requests of a key that have not ended.", &KeyFigures::running);
  const std::string refused = "loralei_key_refused_total";
  family("counter", refused, "Requests of a key that were refused, by the limit that refused them.");
  for (const KeyFigures& key : keys) {
    for (size_t i = 0; i < kKeyLimitNames.size(); ++i)
      sample(refused, "key=\"" + key.name + "\",reason=\"" + kKeyLimitNames[i] + "\"", key.refused[i]);
  }
  return page;
}

}  // namespace loralei
