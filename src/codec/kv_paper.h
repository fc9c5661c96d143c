// SPDX-License-Identifier: Apache-2.0
// The encoding of MobiLoRA (section 3.2, equation 3), to compare with: differences from
// an anchor that is there raw, with absolute bounds that depend on how like the two are.
//
//   cosine of a token's K (or V) over all heads of a layer to the anchor's:
//     > 97.5 %       e = 1e-4
//     85 .. 97.5 %   e = 1e-3
//     below          e = 1e-2
//   q  = floor((k - ka) / (2 log(1 + e)) + 0.5)
//   k' = ka + 2 log(1 + e) q
//
//   |k - k'| <= log(1 + e) + rounding of k' to the cache
//
// The paper does not define the similarity; this is mechanisms section 5. The header and
// the entropy coder are those of kv_blob.h. Products are in double, so the bits are the
// same everywhere. Float caches alone: of int8 and fp8 the paper takes what kv_encode
// does.
//
// Thread: pure functions, no allocation but for sentences. Ownership: the caller's.
// Failure: kv_encode_paper says 0 where `out` is too small, a number is not finite, or
// too many are too far from the anchor: the block stays raw. kv_decode_paper refuses as
// kv_decode does; then the block's bytes may have changed. CHECKs that grid and views
// have one shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "codec/kv_blob.h"

namespace loralei {

// A block of a cache.
struct KvBlockAt {
  KvView view;
  int32_t block = 0;
};

// log(1 + e) of each class: what a number may differ by before it is rounded.
inline constexpr double kKvPaperBounds[3] = {9.999500033330834e-05, 9.995003330835332e-04, 9.950330853168083e-03};

// Of `grid` the shape counts, and its digest as the blob's name.
[[nodiscard]] size_t kv_encode_paper(const KvGrid& grid, const KvBlockAt& block, const KvBlockAt& anchor,
                                     std::span<std::byte> out, const KvCodecPath& path = kv_codec_path());
Status kv_decode_paper(const KvGrid& grid, std::span<const std::byte> blob, const KvBlockAt& anchor,
                       const KvBlockAt& out, const KvCodecPath& path = kv_codec_path());

// The class (0, 1, 2) of one token of K (v = 0) or V of a layer.
int kv_paper_class(const KvBlockAt& block, const KvBlockAt& anchor, int32_t layer, int32_t v, int32_t token);

}  // namespace loralei
