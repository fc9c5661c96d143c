// SPDX-License-Identifier: Apache-2.0
// Digest: a SHA-256 (base/sha256.h), and how it is written.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace loralei {

using Digest = std::array<uint8_t, 32>;
std::string digest_hex(const Digest& digest);
void put_digest_hex(const Digest& digest, std::string& text);  // in the place of `text`, whose memory is kept

}  // namespace loralei
