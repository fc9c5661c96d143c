// SPDX-License-Identifier: Apache-2.0
// simulate(): a workload under virtual time, on replicas that are the real engine loop
// with a profile in the place of a machine (mechanisms §9).
//
// What must hold of every run, and is looked at in every run:
//   S1  every request ends exactly once, whatever goes wrong
//   S2  one that ends well has its number of tokens, or what the longest text leaves
//   S3  nothing is answered before it is due, nothing ends before its first token
//   S4  at the end nobody runs or waits, and no KV block and no adapter is in use
//   S5  a replica that has somebody to compute computes, or waits for something that is
//       under way: time never stands still while somebody waits
// and with `check`, after every event:
//   S6  no memory holds more than it has, and its holders add up to all that is held: KV
//       blocks, adapters in host memory, their copies on the device
// and by tests:
//   S7  two runs of one seed are the same, to the byte
//       (simulate_test: Simulate.WhatMustHoldHoldsAndARunIsRepeated)
//   S8  what a request's answer will be like changes nothing before it has ended
//       (simulate_test: Simulate.NobodyReadsTheFuture)
//   S9  given the times of a live server's steps, the same are admitted in the same steps
//       (simulated_order_test: SimulatedOrder.IsThatOfTheLiveServerGivenItsStepTimes)
// and of a fleet that finds itself through etcd (sim/fleet.h), in every run:
//   S10 every request gets an answer or one error, whoever dies; no token comes twice,
//       and none of a replica where the request is not
//   S11 no router has a member for longer than a lease and its news take behind its
//       death, and behind what kept the router from etcd or etcd from its leader
//   S12 while etcd is away nobody leaves, and never does who lives and can reach etcd
//   S13 whoever writes for all leads at the revision of what is written
//   S14 behind all that went wrong all routers agree on who is there
//
// Thread: one; a pure function of its arguments. Failure: a sentence where the options
// cannot be served, or where something of the above does not hold (a defect).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost/profile.h"
#include "sim/fleet.h"
#include "sim/replica.h"
#include "sim/router.h"
#include "workload/served.h"
#include "workload/workload.h"

namespace loralei::sim {

struct SimulationOptions {
  ReplicaOptions replica;
  int32_t replicas = 1;
  RouterOptions router;
  int32_t routers = 1;             // of R each gets every R-th request
  bool etcd = false;               // they find each other there; else nobody comes or goes
  int32_t rank = 16;               // of adapters whose rank the workload does not say
  std::optional<uint64_t> faults;  // a seed (sim/faults.h)
  FaultKinds fault_kinds;
  // The lengths of this part of the answers are known beforehand, and for each of the
  // others that of some other request is taken: for comparison with what predicts.
  std::optional<double> lengths_known;
  int32_t samples = 0;  // of memory and queues, spread over the workload; more behind its last arrival
  bool check = false;   // every invariant of every loop after every event, for tests
};

struct FleetRun {
  FleetCounts counts;
  uint64_t retries = 0, errors = 0;  // requests that were sent elsewhere; that ended with an error of their router
};

struct SimulatedRun {
  std::vector<ServedRequest> requests;  // beside the workload's
  GapCounts gaps;
  std::vector<LoadSample> samples;    // of all replicas together
  std::vector<EngineStats> replicas;  // at the end
  std::vector<EngineStats> ended;     // of processes that died
  uint64_t placed = 0;                // times that a replica was asked to have an adapter in memory
  int64_t placed_bytes = 0;
  uint64_t routed_beyond = 0;       // requests that no replica could serve within the objectives, as predicted
  int64_t end_ns = 0, busy_ns = 0;  // end: of the last request; busy: of all replicas together
  uint64_t events = 0;
  std::optional<FleetRun> fleet;  // with etcd
};

Result<SimulatedRun> simulate(const Workload& workload, const Profile& profile, const SimulationOptions& options);

}  // namespace loralei::sim
