// SPDX-License-Identifier: Apache-2.0
// HubConnection: one request after the other to a hub and to where it sends us.
//
// Thread: a HubNetwork may be shared by threads; a HubConnection is one thread's.
// Ownership: a connection borrows its network, and keeps open what it asked last.
// Invariants: the token goes to the endpoint's own origin and nowhere else; a redirect
// leads to http or https, never from https to http, and there are ten at most; what an
// answer says besides its body is bounded.
// Failure: kIo, kDeadline and kUnavailable may pass by trying again; anything else says
// what to do.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "http/client.h"
#include "http/url.h"
#include "hub/hub_settings.h"

namespace loralei {

class HubNetwork {
 public:
  explicit HubNetwork(const HubSettings& settings) : settings_(settings) {}
  const HubSettings& settings() const { return settings_; }
  Result<std::shared_ptr<const TlsTrust>> trust() const;  // read when it is first asked for

 private:
  const HubSettings& settings_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const TlsTrust> trust_;
};

struct HubAnswer {
  int status = 0;
  HttpHeaders headers;
  HttpUrl url;  // that gave it

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

class HubConnection {
 public:
  // A piece of the body of a good answer (2xx), whose head is told with it; false ends
  // the request with kCancelled.
  using OnBody = std::function<bool(const HubAnswer& head, std::string_view piece)>;
  // Of a redirect: whether it says enough, and is not followed.
  using Enough = std::function<bool(const HubAnswer&)>;

  explicit HubConnection(const HubNetwork& network) : network_(network) {}

  Result<HubAnswer> ask(std::string_view method, const HttpUrl& url, const HttpHeaders& headers, const OnBody& on_body,
                        const Enough& enough = nullptr);

 private:
  Result<HubAnswer> ask_one(std::string_view method, const HttpUrl& url, const HttpHeaders& headers,
                            const OnBody& on_body);
  Result<HttpClient*> client_of(const HttpUrl& url);

  const HubNetwork& network_;
  std::vector<std::pair<HttpUrl, std::unique_ptr<HttpClient>>> clients_;
};

// Whether, and after how long, what failed is tried again.
class HubPatience {
 public:
  explicit HubPatience(const HubSettings& settings) : settings_(settings) {}
  void got_further() { failed_ = 0; }
  // Waits, unless `stop` is set meanwhile; false: not again.
  bool again(const Error& error, int64_t retry_after_ms, const std::atomic<bool>& stop);

 private:
  const HubSettings& settings_;
  int failed_ = 0;
};

// What an answer that is not 2xx means for who wants `what` of `repository`; kUnavailable
// where it may be another the next time.
Error hub_refusal(const HubSettings& settings, const HubAnswer& answer, const std::string& repository,
                  const std::string& what);
// What Retry-After asks for, at most five minutes; 0: it says nothing.
int64_t retry_after_ms(const HubAnswer& answer);

}  // namespace loralei
