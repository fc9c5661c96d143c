// SPDX-License-Identifier: Apache-2.0
#include "apps/key_flags.h"

#include "apps/tls_flags.h"
#include "base/printable.h"
#include "base/units.h"
#include "serve/access.h"
#include "sys/file.h"

namespace loralei {

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t") == std::string::npos; }

std::string refuse_key(const std::string& key) {
  if (is_blank(key)) return "the key is empty; give one, or leave the option out for a server without";
  const Status status = check_key(key);
  return status.ok() ? "" : status.error().message;
}

Result<std::vector<NamedKey>> read_named_keys(const std::string& path, LogSink& log) {
  if (path.empty()) return std::vector<NamedKey>{};
  const auto text = PosixFileSystem().read_all(path, 16 * kMiB);
  if (!text.ok()) return Error(text.error()).with_context("--keys");
  auto keys = parse_key_file(*text);
  if (!keys.ok()) return std::move(keys).error().with_context("--keys '" + printable(path) + "'");
  if (const std::string warning = open_secret(path); !warning.empty()) log.log(LogLevel::kWarning, warning);
  return keys;
}

}  // namespace loralei
