// SPDX-License-Identifier: Apache-2.0
// UpstreamNames: the addresses of names, looked up once for all who ask meanwhile and
// kept for a while. Private to http/, and included by upstream.cc alone.
//
// Thread: its lane's. Ownership: owns what it knows; a look-up under way keeps its lane's
// thread until the system's resolver has answered. Invariants: an answer is told once, in
// look_up() itself where it is known; a failed look-up is not kept.
// Failure: kUnavailable with a sentence for who asked.
#pragma once

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "http/upstream.h"

namespace loralei {

class UpstreamNames {
 public:
  using Addresses = std::vector<boost::asio::ip::address>;
  using Answer = std::function<void(const Result<Addresses>&)>;

  UpstreamNames(const UpstreamOptions& options, boost::asio::any_io_executor executor)
      : options_(options), executor_(std::move(executor)) {}

  void look_up(const std::string& host, Answer answer) {
    if (names_.size() >= kMostNames) forget_old();
    Name& name = names_[host];
    if (!name.addresses.empty() && std::chrono::steady_clock::now() < name.until) {
      const Result<Addresses> known = name.addresses;  // the answer may change what is known
      return answer(known);
    }
    name.waiting.push_back(std::move(answer));
    if (name.waiting.size() == 1) ask(host);
  }

  // This one could be reached: it is tried first from now on.
  void prefer(const std::string& host, const boost::asio::ip::address& address) {
    const auto found = names_.find(host);
    if (found == names_.end()) return;
    Addresses& all = found->second.addresses;
    const auto it = std::find(all.begin(), all.end(), address);
    if (it != all.end()) std::rotate(all.begin(), it, it + 1);
  }
  // None could be reached: it is looked up anew.
  void forget(const std::string& host) {
    const auto found = names_.find(host);
    if (found != names_.end() && found->second.waiting.empty()) names_.erase(found);
  }

 private:
  static constexpr size_t kMostNames = 1024;
  struct Name {
    Addresses addresses;
    std::chrono::steady_clock::time_point until{};
    std::vector<Answer> waiting;  // not empty: being looked up
  };
  using Resolver = boost::asio::ip::tcp::resolver;

  void forget_old() {
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(names_, [&](const auto& name) { return name.second.waiting.empty() && now >= name.second.until; });
  }

  void ask(const std::string& host) {
    if (options_.look_up) return learn(host, from_texts(options_.look_up(host)));
    auto resolver = std::make_shared<Resolver>(executor_);
    resolver->async_resolve(
        host, "", [this, host, resolver](boost::system::error_code ec, const Resolver::results_type& found) {
          Addresses addresses;
          for (const auto& entry : found) addresses.push_back(entry.endpoint().address());
          learn(host, ec ? Result<Addresses>(unknown(ec.message())) : Result<Addresses>(std::move(addresses)));
        });
  }
  static Error unknown(const std::string& why) {
    return {ErrorCode::kUnavailable, "the name cannot be looked up (" + why + "); check it"};
  }
  static Result<Addresses> from_texts(const Result<std::vector<std::string>>& texts) {
    if (!texts.ok()) return texts.error();
    Addresses addresses;
    for (const std::string& text : *texts) {
      boost::system::error_code ec;
      addresses.push_back(boost::asio::ip::make_address(text, ec));
      if (ec) return unknown("'" + text + "' is not a numeric address");
    }
    return addresses;
  }

  void learn(const std::string& host, const Result<Addresses>& found) {
    Result<Addresses> result = found;
    if (result.ok() && result->empty()) result = unknown("it has no address");
    Name& name = names_[host];
    const std::vector<Answer> waiting = std::exchange(name.waiting, {});
    if (result.ok()) {
      name.addresses = *result;
      name.until = std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.name_ms);
    } else {
      names_.erase(host);
    }
    for (const Answer& answer : waiting) answer(result);
  }

  const UpstreamOptions& options_;
  const boost::asio::any_io_executor executor_;
  std::unordered_map<std::string, Name> names_;
};

}  // namespace loralei
