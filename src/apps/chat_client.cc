// SPDX-License-Identifier: Apache-2.0
#include "apps/chat_client.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "formats/json_util.h"
#include "http/client.h"
#include "http/tls_client.h"
#include "sys/threads.h"

namespace loralei {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(20);
constexpr int64_t kPatienceMs = 3'600'000;  // a long prompt on a slow machine
constexpr size_t kAnswerBytesMax = 64 << 20;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// What a server sent, which may be anything; null where it is no JSON, or deeper than any
// answer is.
Json read_json(std::string_view text) {
  if (json_too_deep(text)) return nullptr;
  Json json = Json::parse(text, nullptr, false);
  return json.is_discarded() ? Json() : json;
}

// What an answer's JSON says was wrong; else its status.
Error refusal(const HttpUrl& url, int status, const std::string& body) {
  const Json json = read_json(body);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_string()) return invalid_argument(error.get<std::string>());
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return invalid_argument(error["message"].get<std::string>());
  }
  const std::string hint = status == 401 ? "; give its key with --api-key" : "";
  return invalid_argument(url.origin() + " answered " + std::to_string(status) + hint);
}

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json& object, const char* name) {
  const Json* const found = member(object, name);
  return found != nullptr && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

// Shared with the thread that hears: it may outlive the call, by as long as the server is
// silent.
struct ChatClient::Running {
  HttpClientOptions options;
  HttpHeaders headers;
  HttpUrl url;
  std::string target, body;
  Heard heard;
  Clock::time_point begin = Clock::now();

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex.
  bool stopped = false, done = false;
  ChatAnswer answer;
  Status status;

  // An event's JSON; false ends the answer.
  bool take(const Json& event) {
    const std::lock_guard lock(mutex);
    if (stopped) return false;
    if (const Json* const error = member(event, "error")) {
      const std::string said = error->is_string() ? error->get<std::string>() : text_of(*error, "message");
      status = invalid_argument(said.empty() ? "the server ended the answer with an error" : said);
      return false;
    }
    if (const Json* const usage = member(event, "usage")) {
      const Json* const tokens = member(*usage, "completion_tokens");
      if (tokens != nullptr && tokens->is_number_integer()) answer.tokens = tokens->get<int64_t>();
    }
    const Json* const choices = member(event, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return true;
    const Json& choice = choices->front();
    if (text_of(choice, "finish_reason") == "length") answer.cut = true;
    const Json* const delta = member(choice, "delta");
    if (delta == nullptr) return true;
    const std::string said = text_of(*delta, "content"), thought = text_of(*delta, "reasoning_content");
    if (said.empty() && thought.empty()) return true;
    answer.all_s = seconds_since(begin);
    if (answer.first_s == 0) answer.first_s = answer.all_s;
    if (!thought.empty() && heard.reasoning) heard.reasoning(thought);
    if (!said.empty()) {
      answer.text += said;
      if (heard.text) heard.text(said);
    }
    if (answer.text.size() <= kAnswerBytesMax) return true;
    status = too_large("the answer is longer than 64 MiB; it was ended");
    return false;
  }
};

Result<ChatClient> ChatClient::to(const std::string& url, std::string key) {
  ChatClient client;
  TRY_ASSIGN(client.url_, parse_http_url(url));
  // Of the API's address: with or without /v1.
  std::string& target = client.url_.target;
  while (target.ends_with('/')) target.pop_back();
  if (!target.ends_with("/v1")) target += "/v1";
  client.key_ = std::move(key);
  if (client.url_.tls) {
    TRY_ASSIGN(client.trust_, TlsTrust::load());
  }
  return client;
}

Result<std::vector<std::string>> ChatClient::models() const {
  HttpClientOptions options{.host = url_.host, .port = url_.port, .tls = trust_};
  HttpClient client(options);
  HttpHeaders headers;
  if (!key_.empty()) headers.emplace_back("Authorization", "Bearer " + key_);
  TRY_ASSIGN(const HttpResponse response, client.request("GET", url_.target + "/models", headers));
  if (response.status != 200) return refusal(url_, response.status, response.body);
  const Json json = read_json(response.body);
  std::vector<std::string> names;
  if (const Json* const data = member(json, "data"); data != nullptr && data->is_array()) {
    for (const Json& one : *data)
      if (std::string name = text_of(one, "id"); !name.empty()) names.push_back(std::move(name));
  }
  if (names.empty())
    return invalid_argument(url_.text() + "/models lists no model: is this the address of a server with OpenAI's API?");
  return names;
}

void ChatClient::run(const std::shared_ptr<Running>& running) {
  HttpClient client(running->options);
  SseParser events;
  std::string refused;
  const auto on_body = [&](std::string_view bytes) {
    if (client.head_status() != 200) {
      refused.append(bytes.substr(0, kAnswerBytesMax - std::min(refused.size(), kAnswerBytesMax)));
      return true;
    }
    return events.feed(bytes, [&](std::string_view data) {
      if (data == "[DONE]") return true;
      const Json event = read_json(data);
      return !event.is_object() || running->take(event);
    });
  };
  const auto response = client.request("POST", running->target, running->headers, running->body, on_body);
  const std::lock_guard lock(running->mutex);
  if (running->status.ok() && !running->stopped) {
    if (!response.ok())
      running->status = response.error();
    else if (response->status != 200)
      running->status = refusal(running->url, response->status, refused);
  }
  running->done = true;
  running->changed.notify_all();
}

Result<ChatAnswer> ChatClient::ask(const std::string& body, const Heard& heard,
                                   const std::function<bool()>& stopped) const {
  const auto running = std::make_shared<Running>();
  running->options = {.host = url_.host, .port = url_.port, .read_timeout_ms = kPatienceMs, .tls = trust_};
  running->headers = {{"Content-Type", "application/json"}, {"Accept", "text/event-stream"}};
  if (!key_.empty()) running->headers.emplace_back("Authorization", "Bearer " + key_);
  running->url = url_;
  running->target = url_.target + "/chat/completions";
  running->body = body;
  running->heard = heard;
  TRY_ASSIGN(std::thread thread, start_thread([running] { run(running); }));
  std::unique_lock lock(running->mutex);
  while (!running->done && !running->stopped) {
    running->changed.wait_for(lock, kLook);
    if (!running->done && stopped()) running->stopped = running->answer.stopped = true;
  }
  const bool done = running->done;
  ChatAnswer answer = running->answer;
  const Status status = running->status;
  lock.unlock();
  // One that is not done ends with the next byte of the server, and tells nobody.
  if (done)
    thread.join();
  else
    thread.detach();
  if (!status.ok()) return status.error();
  return answer;
}

}  // namespace loralei
