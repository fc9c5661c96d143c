// SPDX-License-Identifier: Apache-2.0
// loralei list: the models and adapters in Hugging Face's cache.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/hub_flags.h"
#include "apps/options.h"
#include "base/printable.h"
#include "base/units.h"
#include "formats/json_util.h"
#include "hub/hub_cache.h"

namespace loralei {
namespace {

struct ListFlags {
  HubFlags hub;
  bool json = false;
};

std::string revision_text(const HubListed& one) {
  std::string text;
  for (const std::string& revision : one.revisions) text += (text.empty() ? "" : ", ") + printable(revision);
  const std::string commit = printable(one.commit.substr(0, 8));
  return text.empty() ? commit : text + " (" + commit + ")";
}

std::string kind_text(const HubListed& one) {
  std::string text = one.kind;
  if (!one.base.empty()) text += " of " + printable(one.base);
  return one.whole ? text : text + ", not whole";
}

void print_table(const std::vector<HubListed>& found) {
  size_t names = 4, revisions = 8;
  for (const HubListed& one : found) {
    names = std::max(names, one.repository.size());
    revisions = std::max(revisions, revision_text(one).size());
  }
  const auto row = [&](const std::string& name, const std::string& revision, const std::string& size,
                       const std::string& kind) {
    std::printf("%-*s  %-*s  %10s  %s\n", static_cast<int>(names), name.c_str(), static_cast<int>(revisions),
                revision.c_str(), size.c_str(), kind.c_str());
  };
  row("name", "revision", "size", "kind");
  for (const HubListed& one : found)
    row(printable(one.repository), revision_text(one), format_bytes(one.bytes), kind_text(one));
}

void print_json(const std::vector<HubListed>& found) {
  Json list = Json::array();
  for (const HubListed& one : found) {
    list.push_back({{"name", printable(one.repository)},
                    {"commit", printable(one.commit)},
                    {"revisions", Json::array()},
                    {"bytes", one.bytes},
                    {"kind", one.kind},
                    {"base", one.base.empty() ? Json() : Json(printable(one.base))},
                    {"whole", one.whole},
                    {"path", printable(one.path)}});
    for (const std::string& revision : one.revisions) list.back()["revisions"].push_back(printable(revision));
  }
  std::printf("%s\n", list.dump(2).c_str());
}

Status list(const ListFlags& flags) {
  TRY_ASSIGN(const HubSettings settings, hub_settings(flags.hub));
  const std::vector<HubListed> found = list_hub_cache(PosixFileSystem(), settings.cache_dir);
  if (flags.json) {
    print_json(found);
  } else if (found.empty()) {
    std::printf("there is nothing in %s; loralei pull ORG/NAME fetches a model or an adapter\n",
                printable(settings.cache_dir).c_str());
  } else {
    print_table(found);
  }
  return {};
}

}  // namespace

void add_list_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("list", "The models and adapters that were fetched from a hub.");
  auto flags = std::make_shared<ListFlags>();
  command->add_flag("--json", flags->json, "as a JSON list");
  add_download_dir_option(*command, flags->hub);
  command->callback([flags, &exit_code] {
    const Status status = list(*flags);
    if (status.ok()) return;
    print_error("list", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
