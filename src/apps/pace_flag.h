// SPDX-License-Identifier: Apache-2.0
// --pace: a server at the pace of another machine (engine/pace.h), and what routers are
// told of it.
//
// One thread, before the start. Failure: a sentence that says which profiles there are.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/log.h"
#include "engine/engine_host.h"
#include "serve/options.h"

namespace loralei {

void add_pace_option(CLI::App& command, std::string& name, const std::string& group);

// Of a profile by its name or file; empty: nothing. Its costs are told, where no others
// are stated, and adapters as large as it takes them for. Behind the choice of a device.
Status set_pace(const std::string& name, EngineHostOptions& options, ServeOptions& serve, LogSink& log);

}  // namespace loralei
