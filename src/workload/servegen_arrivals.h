// SPDX-License-Identifier: Apache-2.0
// servegen[:RPS[:CLIENTS[:START]]]:FILE: arrivals of production clients, each with its
// own rate and burstiness in every ten minutes (ServeGen; columns client, start_s,
// requests_per_s, distribution, param1).
//
// RPS: the mean rate of all clients together over the time asked for; left out, each has
// the file's rate. CLIENTS: the busiest ones of that time; left out, all. START: seconds
// of the file's time at which the workload begins.
//
// A gap between two requests of a client has the shape that the file states for the
// window where it begins, and passes at the rate of the windows it passes through. The
// scale that the file states is not used: in windows where a client was active for a
// part of the time it belongs to that part, and the rate to the whole.
//
// Thread: a pure function of its options and the file.
// Failure: a sentence about the word, or FILE:LINE about the file.
#pragma once

#include "workload/arrivals.h"
#include "workload/spec.h"

namespace loralei {

Result<std::vector<WorkloadArrival>> make_servegen_arrivals(const ArrivalOptions& options, const WorkloadSpec& spec);

}  // namespace loralei
