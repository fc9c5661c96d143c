// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_sources.h"

#include <utility>

namespace loralei {

std::shared_ptr<const void> AdapterSources::keep(AdapterSourceId source, const std::string& digest) {
  auto used = use(digest);
  if (used) {
    const std::lock_guard lock(mutex_);
    uses_.at(digest).kept = true;
  }
  return {this, [sources = weak_from_this(), source, used = std::move(used)](const void*) {
            if (const auto told = sources.lock()) told->let_go(source);
          }};
}

std::shared_ptr<const void> AdapterSources::use(const std::string& digest) {
  if (digest.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  ++uses_[digest].count;
  return {this, [sources = weak_from_this(), digest](const void*) {
            if (const auto told = sources.lock()) told->end_use(digest);
          }};
}

bool AdapterSources::uses(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  return uses_.contains(digest);
}

void AdapterSources::end_use(const std::string& digest) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = uses_.find(digest);
    if (--found->second.count > 0) return;
    const bool kept = found->second.kept;
    uses_.erase(found);
    if (!kept) return;
  }
  if (unused_) unused_(digest);
}

Status AdapterSources::drop(const AdapterSourceSpec& source, Dispatcher::ReplyCallback done) {
  {
    const std::lock_guard lock(mutex_);
    dropped_.insert(source.id);
  }
  Status told = dispatcher_.command({0, AdapterAction::kDrop, source}, std::move(done));
  if (told.ok()) return told;
  const std::lock_guard lock(mutex_);
  dropped_.erase(source.id);
  return told;
}

void AdapterSources::let_go(AdapterSourceId source) {
  texts_.forget(source);
  std::set<AdapterSourceId> all;
  {
    const std::lock_guard lock(mutex_);
    if (dropped_.erase(source) == 0) not_taken_.insert(source);
    all.swap(not_taken_);
  }
  for (const AdapterSourceId one : all) {
    if (dispatcher_.command({0, AdapterAction::kDrop, {one, "", ""}}, [](const CommandReply&) {}).ok()) continue;
    const std::lock_guard lock(mutex_);
    not_taken_.insert(one);
  }
}

}  // namespace loralei
