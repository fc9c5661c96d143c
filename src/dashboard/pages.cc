// SPDX-License-Identifier: Apache-2.0
#include "dashboard/pages.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>

#include "base/check.h"
#include "base/digest.h"
#include "base/sha256.h"
#include "dashboard/files.h"

namespace loralei {
namespace {

constexpr std::string_view kIndex = "index.html";
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const char* type_of(std::string_view name) {
  struct Type {
    std::string_view ending;
    const char* type;
  };
  static constexpr std::array<Type, 4> kTypes = {{{".html", "text/html; charset=utf-8"},
                                                  {".css", "text/css; charset=utf-8"},
                                                  {".js", "text/javascript; charset=utf-8"},
                                                  {".svg", "image/svg+xml"}}};
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& one) { return name.ends_with(one.ending); });
  return found == kTypes.end() ? "text/plain; charset=utf-8" : found->type;
}

std::string etag_of(std::string_view body) {
  constexpr size_t kDigits = 32;
  Sha256 sum;
  sum.update(std::as_bytes(std::span(body)));
  return '"' + digest_hex(sum.finish()).substr(0, kDigits) + '"';
}

struct File {
  std::string_view body;
  std::string etag;
};

const std::map<std::string_view, File>& files() {
  static const std::map<std::string_view, File> kAll = [] {
    std::map<std::string_view, File> all;
    for (const EmbeddedFile& file : embedded_files()) all.emplace(file.name, File{file.body, etag_of(file.body)});
    return all;
  }();
  return kAll;
}

// Whether a cache that has one of these has it (RFC 9110, 13.1.2): weak or not is the
// same there.
bool names_etag(std::string_view listed, std::string_view etag) {
  while (!listed.empty()) {
    const size_t end = std::min(listed.find(','), listed.size());
    std::string_view one = listed.substr(0, end);
    listed.remove_prefix(std::min(end + 1, listed.size()));
    while (!one.empty() && (one.front() == ' ' || one.front() == '\t')) one.remove_prefix(1);
    while (!one.empty() && (one.back() == ' ' || one.back() == '\t')) one.remove_suffix(1);
    if (one.starts_with("W/")) one.remove_prefix(2);
    if (one == etag || one == "*") return true;
  }
  return false;
}

HttpResponse answer_with(std::string_view name, const File& file, const HttpHead& request) {
  HttpResponse response;
  response.headers = {{"ETag", file.etag},
                      {"Cache-Control", "no-cache"},  // kept, and asked whether it is still so
                      {"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}};
  response.status = names_etag(request.header("if-none-match"), file.etag) ? 304 : 200;
  if (response.status == 304) return response;
  response.headers.emplace_back("Content-Type", type_of(name));
  response.body = file.body;
  return response;
}

}  // namespace

bool wants_page(const HttpHead& request) {
  return request.header("accept").find("text/html") != std::string_view::npos;
}

HttpResponse page_answer(const HttpHead& request) {
  const auto index = files().find(kIndex);
  CHECK(index != files().end());
  HttpResponse response = answer_with(kIndex, index->second, request);
  response.headers.emplace_back("Vary", "Accept");
  return response;
}

std::optional<HttpResponse> page_file_answer(std::string_view name, const HttpHead& request) {
  const auto file = files().find(name);
  if (file == files().end()) return std::nullopt;
  return answer_with(name, file->second, request);
}

}  // namespace loralei
