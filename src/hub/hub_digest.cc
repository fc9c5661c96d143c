// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/sha256.h"

namespace loralei {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

template <typename Take>
Status read_through(const File& file, const Take& take, const std::function<void(int64_t)>& progress) {
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(kChunkBytes, file.size_bytes())));
  for (int64_t at = 0; at < file.size_bytes();) {
    const std::span part(chunk.data(), static_cast<size_t>(std::min(kChunkBytes, file.size_bytes() - at)));
    TRY(file.read_exact(at, part));
    take(part);
    at += static_cast<int64_t>(part.size());
    if (progress) progress(at);
  }
  return {};
}

Result<std::string> git_digest(const File& file, const std::function<void(int64_t)>& progress) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha1(), nullptr) != 1)
    return io_error("'" + file.path() + "' cannot be checked: this machine's OpenSSL computes no SHA-1");
  const std::string head = "blob " + std::to_string(file.size_bytes());
  EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1);
  const auto take = [&](std::span<const std::byte> part) { EVP_DigestUpdate(context.get(), part.data(), part.size()); };
  TRY(read_through(file, take, progress));
  std::array<unsigned char, 20> digest;
  EVP_DigestFinal_ex(context.get(), digest.data(), nullptr);
  std::string text;
  for (const unsigned char byte : digest) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return text;
}

}  // namespace

Result<std::string> hub_digest(const File& file, const std::string& like,
                               const std::function<void(int64_t)>& progress) {
  if (like.size() == 40) return git_digest(file, progress);
  Sha256 sha;
  TRY(read_through(
      file, [&](std::span<const std::byte> part) { sha.update(part); }, progress));
  return digest_hex(sha.finish());
}

}  // namespace loralei
