// SPDX-License-Identifier: Apache-2.0
// Any list of a hub and any etag: names and digests that may be used as they are, or
// a sentence.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/printable.h"
#include "http/url.h"
#include "hub/hub_choice.h"
#include "hub/hub_listing.h"
#include "hub/hub_name.h"

namespace {

using namespace loralei;

void check_path(const std::string& path) {
  CHECK(!path.empty() && path.front() != '/' && is_printable(path));
  const std::string walled = "/" + path + "/";
  for (const char* const part : {"/../", "/./", "//"}) CHECK(walled.find(part) == std::string::npos);
}

void read_listing(std::string_view body) {
  const auto listing = parse_hub_listing(body, "the list");
  if (!listing.ok()) return CHECK(!listing.error().message.empty());
  CHECK(is_commit(listing->commit));
  std::vector<std::string> all;
  for (const HubFile& file : listing->files) {
    check_path(file.path);
    CHECK(file.bytes >= -1);
    all.push_back(file.path);
  }
  for (const char* const wanted : {"", "Q4_K_M"}) {
    for (const HubKind kind : {HubKind::kModel, HubKind::kAdapter, HubKind::kAny}) {
      const auto choice = choose_hub_files(all, {"org/name", "main", wanted}, kind);
      if (!choice.ok()) {
        CHECK(!choice.error().message.empty());
        continue;
      }
      CHECK(!choice->files.empty());
      for (const std::string& one : choice->files) CHECK(listing->find(one) != nullptr);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 4) {
    case 1:
      if (const auto digest = parse_hub_digest(body); digest.ok())
        CHECK(digest->find_first_not_of("0123456789abcdef") == std::string::npos);
      break;
    case 2:
      if (const auto name = parse_hub_name(body); name.ok() && *name) {
        CHECK(**parse_hub_name((*name)->text()) == **name);
        check_path((*name)->repository);
        check_path((*name)->revision);
      }
      break;
    case 3: {
      const auto from = parse_http_url("https://hub/a/b");
      if (const auto url = resolve_location(*from, body); url.ok()) {
        const auto again = parse_http_url(url->text());
        CHECK(again.ok() && again->text() == url->text() && url->target.front() == '/');
      }
      break;
    }
    default:
      read_listing(body);
  }
  return 0;
}
