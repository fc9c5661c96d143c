// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_connection.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "base/printable.h"
#include "base/units.h"
#include "http/tls_client.h"

namespace loralei {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxClients = 3;
constexpr size_t kMaxRefusalBytes = 64 * 1024;  // of a body that says why not
constexpr size_t kMaxHeaderBytes = 64 * 1024;   // signed addresses are long
constexpr int64_t kConnectMs = 10'000, kReadMs = 30'000;
constexpr int64_t kMaxWaitMs = 300'000, kSliceMs = 50;

bool is_good(int status) { return status >= 200 && status <= 299; }
bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

Result<HttpUrl> redirected(const HubAnswer& answer) {
  const auto next = resolve_location(answer.url, answer.header("location"));
  const std::string place = "The hub's redirect from " + answer.url.origin();
  if (!next.ok()) return corrupt(place + " is not followed: " + next.error().message);
  if (answer.url.tls && !next->tls)
    return corrupt(place + " to " + next->origin() + " is not followed: it leads from https to http.");
  return *next;
}

}  // namespace

Result<std::shared_ptr<const TlsTrust>> HubNetwork::trust() const {
  const std::lock_guard lock(mutex_);
  if (!trust_) {
    TRY_ASSIGN(trust_, TlsTrust::load());
  }
  return trust_;
}

Result<HttpClient*> HubConnection::client_of(const HttpUrl& url) {
  for (auto& [known, client] : clients_) {
    if (known.same_origin(url)) return client.get();
  }
  HttpClientOptions options;
  options.host = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
  options.port = url.port;
  options.connect_timeout_ms = kConnectMs;
  options.read_timeout_ms = kReadMs;
  options.limits.max_header_bytes = kMaxHeaderBytes;
  options.limits.max_body_bytes = static_cast<size_t>(kMaxStatedBytes);
  if (url.tls) {
    TRY_ASSIGN(options.tls, network_.trust());
  }
  TRY_ASSIGN(options.proxy, proxy_of(url, network_.settings().variable));
  if (clients_.size() == kMaxClients) clients_.erase(clients_.begin() + 1);  // the first is the endpoint's
  clients_.emplace_back(url, std::make_unique<HttpClient>(options));
  return clients_.back().second.get();
}

Result<HubAnswer> HubConnection::ask_one(std::string_view method, const HttpUrl& url, const HttpHeaders& more,
                                         const OnBody& on_body) {
  const HubSettings& settings = network_.settings();
  HttpHeaders headers = {{"User-Agent", "loralei"}, {"Accept-Encoding", "identity"}};
  headers.insert(headers.end(), more.begin(), more.end());
  if (!settings.token.empty() && url.same_origin(settings.endpoint))
    headers.emplace_back("Authorization", "Bearer " + settings.token);
  TRY_ASSIGN(HttpClient* const client, client_of(url));
  HubAnswer head;
  head.url = url;
  size_t refusal_bytes = 0;
  const auto deliver = [&](std::string_view piece) {
    if (head.status == 0) {
      head.status = client->head_status();
      head.headers = client->head_headers();
    }
    if (is_good(head.status)) return on_body(head, piece);
    refusal_bytes += piece.size();
    return refusal_bytes <= kMaxRefusalBytes;
  };
  auto response = client->request(method, url.target, headers, {}, deliver);
  if (response.ok()) return HubAnswer{response->status, std::move(response->headers), url};
  if (head.status != 0 && !is_good(head.status)) return head;  // the rest of its body says nothing to us
  return std::move(response).error();
}

Result<HubAnswer> HubConnection::ask(std::string_view method, const HttpUrl& url, const HttpHeaders& headers,
                                     const OnBody& on_body, const Enough& enough) {
  HttpUrl next = url;
  for (int i = 0; i <= kMaxRedirects; ++i) {
    TRY_ASSIGN(HubAnswer answer, ask_one(method, next, headers, on_body));
    if (!is_redirect(answer.status) || (enough && enough(answer))) return answer;
    TRY_ASSIGN(next, redirected(answer));
  }
  return corrupt("The hub redirects more than " + std::to_string(kMaxRedirects) + " times in a row.");
}

bool HubPatience::again(const Error& error, int64_t retry_after_ms, const std::atomic<bool>& stop) {
  const bool passes =
      error.code == ErrorCode::kIo || error.code == ErrorCode::kDeadline || error.code == ErrorCode::kUnavailable;
  if (!passes || ++failed_ >= settings_.tries) return false;
  int64_t left_ms = retry_after_ms > 0 ? retry_after_ms : settings_.first_wait_ms << (failed_ - 1);
  left_ms = std::min(left_ms, kMaxWaitMs);
  for (; left_ms > 0 && !stop; left_ms -= kSliceMs)
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(left_ms, kSliceMs)));
  return !stop;
}

int64_t retry_after_ms(const HubAnswer& answer) {
  const std::string_view text = answer.header("retry-after");
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || seconds <= 0) return 0;
  return std::min(seconds, kMaxWaitMs / 1000) * 1000;
}

Error hub_refusal(const HubSettings& settings, const HubAnswer& answer, const std::string& repository,
                  const std::string& what) {
  const int status = answer.status;
  const std::string hub = settings.endpoint.text();
  const std::string page = hub + "/" + repository;
  const std::string_view code = answer.header("x-error-code");
  const std::string said = answer.url.origin() + " answers " + std::to_string(status);
  if (status == 429 || status >= 500 || status == 408)
    return {ErrorCode::kUnavailable, said + " to the request for " + what + "; try again later"};
  if (!answer.url.same_origin(settings.endpoint)) {
    return {ErrorCode::kUnavailable, said + " to the request for " + what +
                                         ", to which the hub has sent us; try again, the address may have expired"};
  }
  if (code == "GatedRepo" || (status == 403 && code.empty())) {
    return {ErrorCode::kForbidden, repository +
                                       " is given to those alone who have accepted its terms: accept the "
                                       "model's terms at " +
                                       page + ", and set HF_TOKEN to a token of that account" +
                                       (settings.token.empty() ? "." : " (the one that is set is of none).")};
  }
  if (status == 401 || status == 403) {
    return {ErrorCode::kUnauthenticated, settings.token.empty()
                                             ? repository + " is not at " + hub +
                                                   ", or is private: check the name, or set HF_TOKEN to a token that "
                                                   "may read it."
                                             : repository + " is not at " + hub +
                                                   ", or may not be read with the token that is set: check the name "
                                                   "and HF_TOKEN."};
  }
  if (status == 404 && code == "RevisionNotFound")
    return not_found(what + ": there is no such revision at " + page + ".");
  if (status == 404 && code == "EntryNotFound") return not_found(what + ": there is no such file at " + page + ".");
  if (status == 404) return not_found(what + ": there is none at " + hub + "; check the name.");
  return io_error(said + " to the request for " + what + ", which is not understood here.");
}

}  // namespace loralei
