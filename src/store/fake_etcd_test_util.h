// SPDX-License-Identifier: Apache-2.0
// FakeEtcd: for tests, what our client asks of etcd, in memory and behind real sockets,
// with the faults that tests need at the moment that they need them.
//
// Thread-safe. Ownership: its listeners. Answers are spelled as etcd 3.4 spells them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/base64.h"
#include "base/log_test_util.h"
#include "http/server.h"
#include "store/etcd_client.h"

namespace loralei::test {

class FakeEtcd {
 public:
  using Json = nlohmann::json;

  explicit FakeEtcd(size_t members = 1) {
    for (size_t i = 0; i < members; ++i) {
      members_.push_back(std::make_unique<Member>(*this, i));
      start(i);
    }
  }
  ~FakeEtcd() {
    for (size_t i = 0; i < members_.size(); ++i) stop(i);
  }

  EtcdOptions options() const {
    EtcdOptions options;
    for (const auto& member : members_) options.endpoints.push_back({"127.0.0.1", member->port});
    options.attempt_ms = 10'000;
    options.deadline_ms = 60'000;
    return options;
  }

  // A member's process ends, and is started again.
  void stop(size_t member) {
    end_watches(member, "");
    if (auto server = std::move(members_[member]->server)) server->stop(0);
  }
  void start(size_t member) {
    HttpServerOptions options;
    options.port = members_[member]->port;
    auto server = HttpServer::start(options, *members_[member], log_);
    ASSERT_TRUE(server.ok()) << server.error().message;
    members_[member]->server = std::move(*server);
    members_[member]->port = members_[member]->server->port();
  }
  // A member that takes requests and says nothing, as a process that was stopped does.
  void mute(size_t member, bool is) {
    const std::lock_guard lock(mutex_);
    members_[member]->mute = is;
  }
  // The next `count` requests to such a path are done and then answered with this.
  void fail_behind(const std::string& path, int count, const std::string& message = "etcdserver: request timed out") {
    const std::lock_guard lock(mutex_);
    failures_.push_back({path, count, message, true});
  }
  // The same without being done.
  void fail_before(const std::string& path, int count, const std::string& message, int code = 14) {
    const std::lock_guard lock(mutex_);
    failures_.push_back({path, count, message, false, code});
  }
  // Before the next transaction is done, once.
  void before_txn(std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    before_txn_ = std::move(what);
  }
  // Behind the next page of several, once.
  void after_page(std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    after_page_ = std::move(what);
  }
  // Streams end behind these bytes.
  void end_watches(size_t member, const std::string& last) {
    std::vector<Watcher> ended;
    {
      const std::lock_guard lock(mutex_);
      for (Watcher& watcher : watchers_)
        if (watcher.member == member) ended.push_back(watcher);
      std::erase_if(watchers_, [member](const Watcher& watcher) { return watcher.member == member; });
    }
    for (Watcher& watcher : ended) {
      if (!last.empty()) watcher.writer->write(last);
      watcher.writer->finish();
    }
  }
  size_t watches(size_t member) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(
        std::count_if(watchers_.begin(), watchers_.end(), [&](const Watcher& one) { return one.member == member; }));
  }
  // From now on each event has a line of its own.
  void fragments(bool are) {
    const std::lock_guard lock(mutex_);
    fragments_ = are;
  }
  void compact() {
    const std::lock_guard lock(mutex_);
    compacted_ = revision_;
  }
  // Another, empty cluster stands there.
  void begin_anew(const std::string& cluster) {
    const std::lock_guard lock(mutex_);
    keys_.clear();
    history_.clear();
    revision_ = 1;
    compacted_ = 0;
    cluster_ = cluster;
  }
  int64_t put(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    ++revision_;
    put_key(key, value, 0);
    publish();
    return revision_;
  }
  int64_t remove(const std::string& key) {
    const std::lock_guard lock(mutex_);
    ++revision_;
    remove_key(key);
    publish();
    return revision_;
  }
  void expire(int64_t lease) {
    const std::lock_guard lock(mutex_);
    end_lease(lease);
  }
  std::vector<int64_t> leases() const {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> all;
    for (const auto& [id, ttl] : leases_) all.push_back(id);
    return all;
  }
  std::map<std::string, std::string> all() const {
    const std::lock_guard lock(mutex_);
    std::map<std::string, std::string> values;
    for (const auto& [key, kv] : keys_) values[key] = kv.value;
    return values;
  }
  int64_t revision() const {
    const std::lock_guard lock(mutex_);
    return revision_;
  }
  int requests(const std::string& path) const {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(path);
    return found == requests_.end() ? 0 : found->second;
  }

 private:
  using Writer = std::shared_ptr<ResponseWriter>;
  struct Member final : HttpHandler {
    Member(FakeEtcd& etcd, size_t number) : etcd(etcd), number(number) {}
    void handle(HttpRequest request, Writer writer) override { etcd.handle(number, request, std::move(writer)); }
    FakeEtcd& etcd;
    const size_t number;
    int port = 0;
    bool mute = false;
    std::vector<Writer> held;
    std::unique_ptr<HttpServer> server;
  };
  struct Watcher {
    size_t member = 0;
    std::string key, end;
    int64_t next = 0;
    Writer writer;
  };
  struct Failure {
    std::string path;
    int count = 0;
    std::string message;
    bool behind = false;
    int code = 14;
  };

  static std::string bytes(const Json& json, const char* key) {
    return base64_decode(json.value(key, "")).value_or("?");
  }
  static int64_t number(const Json& json, const char* key) { return std::stoll(json.value(key, std::string("0"))); }
  Json header() const {
    return {{"cluster_id", cluster_}, {"member_id", "7"}, {"revision", std::to_string(revision_)}};
  }
  static Json kv_json(const EtcdKeyValue& kv) {
    Json json = {{"key", base64_encode(kv.key)}};
    if (kv.create_revision != 0) json["create_revision"] = std::to_string(kv.create_revision);
    if (kv.mod_revision != 0) json["mod_revision"] = std::to_string(kv.mod_revision);
    if (!kv.value.empty()) json["value"] = base64_encode(kv.value);
    if (kv.lease != 0) json["lease"] = std::to_string(kv.lease);
    return json;
  }
  static std::pair<int, Json> refusal(int status, int code, const std::string& message) {
    return {status, {{"error", message}, {"message", message}, {"code", code}}};
  }

  void put_key(const std::string& key, const std::string& value, int64_t lease) {
    EtcdKeyValue& kv = keys_[key];
    if (kv.create_revision == 0) kv.create_revision = revision_;
    kv.key = key, kv.value = value, kv.mod_revision = revision_, kv.lease = lease;
    history_.push_back({false, kv});
  }
  void remove_key(const std::string& key) {
    if (keys_.erase(key) == 0) return;
    EtcdEvent event{true, {}};
    event.kv.key = key, event.kv.mod_revision = revision_;
    history_.push_back(event);
  }
  void end_lease(int64_t lease) {
    leases_.erase(lease);
    std::vector<std::string> gone;
    for (const auto& [key, kv] : keys_)
      if (kv.lease == lease) gone.push_back(key);
    if (!gone.empty()) ++revision_;
    for (const std::string& key : gone) remove_key(key);
    publish();
  }
  static bool within(const std::string& key, const std::string& from, const std::string& end) {
    if (end.empty()) return key == from;
    return key >= from && (end == std::string(1, '\0') || key < end);
  }
  void publish() {
    for (Watcher& watcher : watchers_) send(watcher);
  }
  void send(Watcher& watcher) {
    std::vector<EtcdEvent> events;
    for (const EtcdEvent& event : history_)
      if (event.kv.mod_revision >= watcher.next && within(event.kv.key, watcher.key, watcher.end))
        events.push_back(event);
    watcher.next = revision_ + 1;
    if (events.empty()) return;
    std::vector<Json> lists(1, Json::array());
    for (const EtcdEvent& event : events) {
      if (fragments_ && !lists.back().empty()) lists.push_back(Json::array());
      Json json = {{"kv", kv_json(event.kv)}};
      if (event.removed) json["type"] = "DELETE";
      lists.back().push_back(json);
    }
    for (size_t i = 0; i < lists.size(); ++i) {
      Json result = {{"header", header()}, {"events", lists[i]}};
      if (i + 1 < lists.size()) result["fragment"] = true;
      watcher.writer->write(Json{{"result", result}}.dump() + "\n");
    }
  }

  void handle(size_t member, const HttpRequest& request, Writer writer) {
    std::function<void()> before;
    {
      const std::lock_guard lock(mutex_);
      ++requests_[request.path];
      if (members_[member]->mute) return members_[member]->held.push_back(std::move(writer));
      if (request.path == "/v3/kv/txn") before = std::exchange(before_txn_, nullptr);
    }
    if (before) before();
    std::function<void()> after;
    const auto answer = take(member, request, writer, after);
    if (after) after();
    if (answer) writer->respond(answer->first, {{"Content-Type", "application/json"}}, answer->second.dump());
  }

  // `after`: what is to be done before it is answered.
  std::optional<std::pair<int, Json>> take(size_t member, const HttpRequest& request, const Writer& writer,
                                           std::function<void()>& after) {
    const std::lock_guard lock(mutex_);
    const auto failure = std::find_if(failures_.begin(), failures_.end(),
                                      [&](const Failure& one) { return one.count > 0 && one.path == request.path; });
    const bool fails = failure != failures_.end();
    if (fails) --failure->count;
    if (fails && !failure->behind) return refusal(503, failure->code, failure->message);
    const Json body = Json::parse(request.body);
    if (request.path == "/v3/watch") return watch(member, body.at("create_request"), writer), std::nullopt;
    const std::pair<int, Json> answer = answer_of(request.path, body);
    if (fails) return refusal(503, 14, failure->message);
    if (answer.second.contains("more")) after = std::exchange(after_page_, nullptr);
    return answer;
  }

  std::pair<int, Json> answer_of(const std::string& path, const Json& body) {
    const auto no = [](int code, const std::string& message) { return refusal(400, code, message); };
    if (path == "/v3/kv/range") {
      const int64_t at = number(body, "revision");
      if (at > 0 && at < compacted_) return no(11, "etcdserver: mvcc: required revision has been compacted");
      if (at > revision_) return no(11, "etcdserver: mvcc: required revision is a future revision");
      return {200, range(body, at)};
    }
    if (path == "/v3/kv/put") {
      const int64_t lease = number(body, "lease");
      if (lease != 0 && leases_.count(lease) == 0) return no(5, "etcdserver: requested lease not found");
      ++revision_;
      put_key(bytes(body, "key"), bytes(body, "value"), lease);
      publish();
      return {200, {{"header", header()}}};
    }
    if (path == "/v3/kv/deleterange") {
      if (keys_.count(bytes(body, "key")) != 0) ++revision_;
      remove_key(bytes(body, "key"));
      publish();
      return {200, {{"header", header()}}};
    }
    if (path == "/v3/kv/txn") return txn(body);
    const int64_t id = number(body, "ID");
    if (path == "/v3/lease/grant") {
      if (leases_.count(id) != 0) return no(9, "etcdserver: lease already exists");
      leases_[id] = number(body, "TTL");
      return {200, {{"header", header()}, {"ID", std::to_string(id)}, {"TTL", std::to_string(leases_[id])}}};
    }
    if (path == "/v3/lease/keepalive") {
      Json result = {{"header", header()}, {"ID", std::to_string(id)}};
      if (leases_.count(id) != 0) result["TTL"] = std::to_string(leases_[id]);
      return {200, {{"result", result}}};
    }
    if (path == "/v3/lease/revoke") {
      if (leases_.count(id) == 0) return no(5, "etcdserver: requested lease not found");
      end_lease(id);
      return {200, {{"header", header()}}};
    }
    return {404, Json("Not Found")};
  }

  Json range(const Json& body, int64_t at) const {
    std::map<std::string, EtcdKeyValue> then = keys_;
    if (at > 0) {
      then.clear();
      for (const EtcdEvent& event : history_) {
        if (event.kv.mod_revision > at) continue;
        if (event.removed)
          then.erase(event.kv.key);
        else
          then[event.kv.key] = event.kv;
      }
    }
    std::vector<EtcdKeyValue> found;
    for (const auto& [key, kv] : then)
      if (within(key, bytes(body, "key"), bytes(body, "range_end"))) found.push_back(kv);
    if (body.value("sort_target", "") == "CREATE") {
      std::sort(found.begin(), found.end(),
                [](const auto& a, const auto& b) { return a.create_revision < b.create_revision; });
    }
    Json answer = {{"header", header()}, {"count", std::to_string(found.size())}};
    if (body.value("count_only", false)) return answer;
    const auto limit = static_cast<size_t>(number(body, "limit"));
    for (const EtcdKeyValue& kv : found) {
      if (limit > 0 && answer["kvs"].size() >= limit) {
        answer["more"] = true;
        break;
      }
      answer["kvs"].push_back(kv_json(kv));
    }
    return answer;
  }

  std::pair<int, Json> txn(const Json& body) {
    bool holds = true;
    for (const Json& compare : body.at("compare")) {
      const auto found = keys_.find(bytes(compare, "key"));
      const EtcdKeyValue kv = found == keys_.end() ? EtcdKeyValue() : found->second;
      const std::string target = compare.at("target");
      holds &= target == "MOD"      ? kv.mod_revision == number(compare, "mod_revision")
               : target == "CREATE" ? kv.create_revision == number(compare, "create_revision")
                                    : found != keys_.end() && kv.value == bytes(compare, "value");
    }
    std::set<std::string> put, gone;
    bool twice = false, has_leases = true;
    for (const Json& one : body.at("success")) {
      if (!one.contains("requestPut")) continue;
      twice |= !put.insert(bytes(one["requestPut"], "key")).second;
      const int64_t lease = number(one["requestPut"], "lease");
      has_leases &= lease == 0 || leases_.count(lease) != 0;
    }
    for (const Json& one : body.at("success")) {
      if (one.contains("requestDeleteRange")) gone.insert(bytes(one["requestDeleteRange"], "key"));
    }
    for (const std::string& key : gone) twice |= put.count(key) != 0;
    if (twice) return refusal(400, 3, "etcdserver: duplicate key given in txn request");
    if (holds && !has_leases) return refusal(400, 5, "etcdserver: requested lease not found");
    Json responses = Json::array();
    const bool changes = !put.empty() || std::any_of(gone.begin(), gone.end(),
                                                     [this](const std::string& key) { return keys_.count(key) != 0; });
    if (holds && changes) ++revision_;
    for (const Json& one : body.at(holds ? "success" : "failure")) {
      if (one.contains("requestPut")) {
        const Json& put = one["requestPut"];
        put_key(bytes(put, "key"), bytes(put, "value"), number(put, "lease"));
        responses.push_back({{"response_put", {{"header", header()}}}});
      } else if (one.contains("requestDeleteRange")) {
        remove_key(bytes(one["requestDeleteRange"], "key"));
        responses.push_back({{"response_delete_range", {{"header", header()}}}});
      } else {
        responses.push_back({{"response_range", range(one.at("requestRange"), 0)}});
      }
    }
    publish();
    Json answer = {{"header", header()}, {"responses", responses}};
    if (holds) answer["succeeded"] = true;
    return {200, answer};
  }

  void watch(size_t member, const Json& create, Writer writer) {
    writer->start_stream(200, {{"Content-Type", "application/json"}});
    writer->write(Json{{"result", {{"header", header()}, {"created", true}}}}.dump() + "\n");
    Watcher watcher{member, bytes(create, "key"), bytes(create, "range_end"), number(create, "start_revision"), writer};
    if (watcher.next > 0 && watcher.next < compacted_) {
      const Json result = {{"header", header()}, {"canceled", true}, {"compact_revision", std::to_string(compacted_)}};
      writer->write(Json{{"result", result}}.dump() + "\n");
      return writer->finish();
    }
    send(watcher);
    watchers_.push_back(std::move(watcher));
  }

  mutable std::mutex mutex_;
  CollectingLog log_;
  std::string cluster_ = "11";
  int64_t revision_ = 1, compacted_ = 0;
  std::map<std::string, EtcdKeyValue> keys_;
  std::vector<EtcdEvent> history_;
  std::map<int64_t, int64_t> leases_;  // and their seconds
  std::vector<Watcher> watchers_;
  std::vector<Failure> failures_;
  std::map<std::string, int> requests_;
  std::function<void()> before_txn_, after_page_;
  bool fragments_ = false;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace loralei::test
