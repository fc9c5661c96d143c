// SPDX-License-Identifier: Apache-2.0
#include "apps/tls_flags.h"

#include <sys/stat.h>

#include <ctime>

#include "apps/key_flags.h"
#include "base/printable.h"
#include "base/units.h"
#include "sys/file.h"

namespace loralei {
namespace {

std::string refuse_empty_path(const std::string& path) {
  return is_blank(path) ? "the path is empty; name a file, or leave the option out for a server without TLS" : "";
}

Result<std::string> read_pem(const char* flag, const std::string& path) {
  auto text = PosixFileSystem().read_all(path, kMiB);
  if (!text.ok()) return std::move(text).error().with_context(flag);
  return text;
}

}  // namespace

void add_tls_options(CLI::App& command, TlsFlags& flags, const std::string& group) {
  command
      .add_option("--ssl-certfile,--ssl-cert-file", flags.certificate,
                  "PEM file of a certificate, with those that lead to its authority: the server speaks https; read "
                  "again at SIGHUP")
      ->check(refuse_empty_path)
      ->group(group);
  command
      .add_option("--ssl-keyfile,--ssl-key-file", flags.key,
                  "PEM file of its key (default: it stands in --ssl-certfile's)")
      ->check(refuse_empty_path)
      ->group(group);
}

std::string open_secret(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || (info.st_mode & (S_IROTH | S_IWOTH)) == 0) return "";
  return "Every user of this machine may " + std::string((info.st_mode & S_IWOTH) != 0 ? "write" : "read") + " '" +
         printable(path) + "': chmod 600 leaves it to its owner.";
}

Result<std::shared_ptr<const ServerTls>> read_tls(const TlsFlags& flags, LogSink& log) {
  if (flags.certificate.empty()) {
    if (flags.key.empty()) return std::shared_ptr<const ServerTls>();
    return invalid_argument("--ssl-keyfile is of no use alone: give its certificate with --ssl-certfile.");
  }
  const std::string& key_path = flags.key.empty() ? flags.certificate : flags.key;
  TRY_ASSIGN(const std::string certificate, read_pem("--ssl-certfile", flags.certificate));
  TRY_ASSIGN(const std::string key, read_pem(flags.key.empty() ? "--ssl-certfile" : "--ssl-keyfile", key_path));
  auto tls = ServerTls::make(certificate, key);
  if (!tls.ok()) {
    std::string where = "--ssl-certfile '" + printable(flags.certificate) + "'";
    if (!flags.key.empty()) where += ", --ssl-keyfile '" + printable(flags.key) + "'";
    return std::move(tls).error().with_context(where);
  }
  for (const std::string& warning : {(*tls)->complaint(std::time(nullptr)), open_secret(key_path)})
    if (!warning.empty()) log.log(LogLevel::kWarning, warning);
  return tls;
}

std::shared_ptr<const ServerTls> read_tls_again(const TlsFlags& flags, LogSink& log) {
  auto tls = read_tls(flags, log);
  if (!tls.ok()) {
    log.log(LogLevel::kError, "The certificate in use stays: " + tls.error().message);
    return nullptr;
  }
  if (*tls) {
    log.log(LogLevel::kInfo,
            "TLS: new connections get the certificate of " + (*tls)->subject() + ", valid until " + (*tls)->until());
  }
  return *tls;
}

}  // namespace loralei
