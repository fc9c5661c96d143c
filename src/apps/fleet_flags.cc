// SPDX-License-Identifier: Apache-2.0
#include "apps/fleet_flags.h"

#include <random>
#include <utility>

#include "apps/replica_url.h"
#include "store/etcd_client.h"

namespace loralei {
namespace {

constexpr size_t kFleetBytesMost = 64;

std::string random_word() {
  std::random_device device;
  return std::to_string((uint64_t{device()} << 32) | device());
}

// "host", "host:", "[::1]": the port is the one it listens on.
bool states_port(const std::string& text) {
  const size_t bracket = text.rfind(']');
  const size_t colon = text.rfind(':');
  return colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
}

}  // namespace

std::string refuse_fleet(const std::string& name) {
  const bool plain =
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (plain && !name.empty() && name.size() <= kFleetBytesMost) return "";
  return "a fleet's name is made of letters, digits, '.', '_' and '-', 64 at most";
}

Result<MembershipOptions> membership_options(const FleetFlags& flags) {
  MembershipOptions options;
  options.fleet = flags.fleet;
  if (flags.etcd.empty()) return options;
  auto endpoints = parse_etcd_endpoints(flags.etcd);
  if (!endpoints.ok()) return std::move(endpoints).error().with_context("--etcd");
  options.etcd = *std::move(endpoints);
  return options;
}

Result<UpstreamAddress> advertised_address(const FleetFlags& flags, const std::string& host) {
  if (flags.etcd.empty()) return UpstreamAddress();
  TRY(membership_options(flags));
  const bool everywhere = host == "0.0.0.0" || host == "::" || host == "[::]" || host.empty();
  if (flags.advertise.empty() && everywhere) {
    return invalid_argument(
        "--etcd needs --advertise HOST:PORT, where routers reach this server: it listens on every "
        "address of this machine");
  }
  const bool listens = flags.advertise.empty();
  auto address = parse_replica_url(listens ? server_url(host, 1) : flags.advertise);
  if (!address.ok()) return std::move(address).error().with_context("--advertise");
  std::string typed = flags.advertise;
  if (typed.starts_with("http://")) typed.erase(0, 7);
  if (listens || !states_port(typed)) address->port = 0;
  return address;
}

Status Membership::join(const FleetFlags& flags, FleetMember member, LogSink& log) {
  TRY_ASSIGN(const MembershipOptions options, membership_options(flags));
  if (options.etcd.empty()) return {};
  member.boot = random_word();
  TRY_ASSIGN(auto keeper, MemberKeeper::start(options, member, log));
  const std::lock_guard lock(mutex_);
  keeper_ = std::move(keeper);
  if (left_) keeper_->leave();
  return {};
}

void Membership::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  if (keeper_) keeper_->leave();
}

void Membership::leave_and_wait(int64_t timeout_ms) {
  leave();
  MemberKeeper* keeper = nullptr;  // it stays; a drain over HTTP need not wait for this
  {
    const std::lock_guard lock(mutex_);
    keeper = keeper_.get();
  }
  if (keeper != nullptr) (void)keeper->wait_left(timeout_ms);
}

}  // namespace loralei
