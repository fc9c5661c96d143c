// SPDX-License-Identifier: Apache-2.0
#include "adapters/versions.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {

AdapterPin& AdapterPin::operator=(AdapterPin&& other) noexcept {
  if (this != &other) {
    release();
    versions_ = std::exchange(other.versions_, nullptr);
    version_ = std::exchange(other.version_, nullptr);
  }
  return *this;
}

const Adapter& AdapterPin::operator*() const {
  CHECK(version_ != nullptr);
  return *version_->adapter;
}

void AdapterPin::release() {
  if (versions_ != nullptr) std::exchange(versions_, nullptr)->unpin(*std::exchange(version_, nullptr));
}

AdapterClaim& AdapterClaim::operator=(AdapterClaim&& other) noexcept {
  if (this != &other) {
    release();
    versions_ = std::exchange(other.versions_, nullptr);
    version_ = other.version_;
  }
  return *this;
}

void AdapterClaim::release() {
  if (versions_ != nullptr) std::exchange(versions_, nullptr)->unclaim(version_);
}

AdapterVersions::AdapterVersions(const Clock& clock, AdapterVersionEvents events)
    : clock_(clock), events_(std::move(events)) {
  CHECK(events_.used && events_.leaving);
}

AdapterVersions::~AdapterVersions() {
  for (const auto& [id, version] : versions_) {
    CHECK(version->pins == 0);
    events_.leaving(*version);
  }
}

AdapterVersion& AdapterVersions::put(AdapterEntry& owner, std::string label, std::shared_ptr<const Adapter> adapter) {
  const uint64_t id = adapter->version.value;
  CHECK(id != 0 && id < next_id_);
  auto version = std::make_unique<AdapterVersion>();
  version->label = std::move(label);
  version->adapter = std::move(adapter);
  version->owner = &owner;
  version->last_use_ns = clock_.now_ns();
  const auto [added, is_new] = versions_.emplace(id, std::move(version));
  CHECK(is_new);
  return *added->second;
}

void AdapterVersions::take_grant(AdapterVersion& version, Grant grant) {
  CHECK(version.grant.bytes() == 0 && grant.bytes() >= version.adapter->bytes);
  version.grant = std::move(grant);
  version.grant.shrink_to(version.adapter->bytes);
  bytes_ += version.grant.bytes();
}

AdapterVersion& AdapterVersions::add(AdapterEntry& owner, std::string label, std::shared_ptr<const Adapter> adapter,
                                     Grant grant) {
  CHECK(adapter != nullptr);
  AdapterVersion& version = put(owner, std::move(label), std::move(adapter));
  take_grant(version, std::move(grant));
  ++digests_[version.adapter->digest];
  return version;
}

AdapterVersion& AdapterVersions::add_arriving(AdapterEntry& owner, std::string label, AdapterArriving arriving) {
  CHECK(arriving.adapter != nullptr && arriving.arrivals != nullptr);
  AdapterVersion& version = put(owner, std::move(label), arriving.adapter);
  version.arriving = std::move(arriving);
  return version;
}

void AdapterVersions::complete(AdapterVersion& version, Grant grant) {
  CHECK(!version.whole() && !version.failed);
  take_grant(version, std::move(grant));
  version.arriving.reset();
  version.last_use_ns = clock_.now_ns();
  ++digests_[version.adapter->digest];
}

void AdapterVersions::fail(AdapterVersion& version, Grant grant) {
  CHECK(!version.whole() && !version.failed);
  take_grant(version, std::move(grant));
  version.failed = true;
  version.owner = nullptr;
  leave_unless_used(version);
}

AdapterVersion* AdapterVersions::find(AdapterVersionId id) const {
  const auto found = versions_.find(id.value);
  return found == versions_.end() ? nullptr : found->second.get();
}

AdapterPin AdapterVersions::pin(AdapterVersion& version, uint64_t order) {
  version.youngest_order = version.pins == 0 ? order : std::max(version.youngest_order, order);
  ++version.pins;
  version.last_use_ns = clock_.now_ns();
  events_.used(version.owner);
  return AdapterPin(this, &version);
}

void AdapterVersions::unpin(AdapterVersion& version) {
  CHECK(version.pins > 0);
  --version.pins;
  version.last_use_ns = clock_.now_ns();
  events_.used(version.owner);
  leave_unless_used(version);
}

AdapterClaim AdapterVersions::claim(AdapterVersionId id) {
  ++versions_.at(id.value)->claims;
  return AdapterClaim(this, id);
}

void AdapterVersions::unclaim(AdapterVersionId id) {
  AdapterVersion* const version = find(id);
  if (version == nullptr) return;  // it has left memory meanwhile
  CHECK(version->claims > 0);
  --version->claims;
  leave_unless_used(*version);
}

void AdapterVersions::retire(AdapterVersion& version, const std::vector<uint64_t>& unload_tickets) {
  CHECK(!version.retired());
  version.owner = nullptr;
  version.unload_tickets.insert(version.unload_tickets.end(), unload_tickets.begin(), unload_tickets.end());
  leave_unless_used(version);
}

void AdapterVersions::evict(AdapterVersion& version) {
  CHECK(version.pins == 0 && !version.retired() && version.whole());
  leave(version);
}

void AdapterVersions::leave_unless_used(AdapterVersion& version) {
  if (version.retired() && version.pins == 0 && (version.claims == 0 || version.failed)) leave(version);
}

void AdapterVersions::leave(AdapterVersion& version) {
  bytes_ -= version.grant.bytes();
  CHECK(bytes_ >= 0);
  events_.leaving(version);
  if (version.whole()) {
    if (const auto digest = digests_.find(version.adapter->digest); --digest->second == 0) digests_.erase(digest);
  }
  versions_.erase(version.adapter->version.value);
}

void AdapterVersions::check() const {
  int64_t sum_bytes = 0;
  for (const auto& [id, version] : versions_) {
    CHECK(version->adapter->version.value == id && id < next_id_);
    CHECK(version->pins >= 0 && version->claims >= 0);
    CHECK(version->grant.bytes() == (version->whole() || version->failed ? version->adapter->bytes : 0));
    CHECK(!version->retired() || version->pins + (version->failed ? 0 : version->claims) > 0);
    CHECK(!version->failed || (version->retired() && !version->whole()));
    CHECK(version->retired() || version->unload_tickets.empty());
    CHECK(!version->whole() || has(version->adapter->digest));
    sum_bytes += version->grant.bytes();
  }
  CHECK(sum_bytes == bytes_);
}

}  // namespace loralei
