// SPDX-License-Identifier: Apache-2.0
#include "engine/adapter_message.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/host/arena.h"

namespace loralei {
namespace {

constexpr uint64_t kMagic = 0x31616c65726f6cu;  // "lorela1"
constexpr size_t kAlign = 64;

struct Head {
  uint64_t magic = kMagic;
  AdapterVersionId version;
  Digest digest{};
  int64_t bytes = 0;
  int32_t rank_max = 0, vocab = 0;
  std::array<uint64_t, kLayerNorms> norms{};
  uint64_t embed_tokens = 0, head_tokens = 0;
  int32_t embed_rows_count = 0, head_rows_count = 0;  // of the full matrices
  DType embed_dtype = DType::kF32, head_dtype = DType::kF32;
  uint64_t arrays_at = 0, all = 0;
};

size_t aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// A pointer on its way: where it points to, from the first byte; null: nowhere.
constexpr uint64_t kNowhere = UINT64_MAX;

template <typename T>
void to_offset(const T*& pointer, const std::byte* base) {
  const uint64_t offset =
      pointer == nullptr ? kNowhere : static_cast<uint64_t>(reinterpret_cast<const std::byte*>(pointer) - base);
  std::memcpy(&pointer, &offset, sizeof offset);
}
template <typename T>
bool to_pointer(const T*& pointer, const std::byte* base, uint64_t all) {
  uint64_t offset = 0;
  std::memcpy(&offset, &pointer, sizeof offset);
  pointer = offset == kNowhere ? nullptr : reinterpret_cast<const T*>(base + offset);
  return offset == kNowhere || offset < all;
}
static_assert(sizeof(void*) == sizeof(uint64_t));

// All pointers of an adapter but those of its full matrices.
template <typename Visit>
void visit_pointers(Adapter& adapter, Visit&& visit) {
  for (LoraPair& pair : adapter.pairs) {
    visit(pair.a);
    visit(pair.b_t);
    visit(pair.a_scale);
    visit(pair.b_scale);
    visit(pair.b_bias);
    visit(pair.bias_delta);
  }
  SavedTensors& saved = adapter.saved;
  for (auto& norms : saved.norms)
    for (const float*& norm : norms) visit(norm);
  visit(saved.final_norm);
  visit(saved.embed_rows);
  visit(saved.head_rows);
}

struct Writer {
  std::byte* at;
  void put(const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(at, from, bytes);
    at += aligned(bytes, 8);
  }
  template <typename T>
  void put_all(const std::vector<T>& values) {
    put(values.data(), values.size() * sizeof(T));
  }
};

struct Reader {
  std::span<const std::byte> left;
  bool ok = true;
  void get(void* to, size_t bytes) {
    if (!ok || aligned(bytes, 8) > left.size()) {
      ok = false;
      return;
    }
    if (bytes > 0) std::memcpy(to, left.data(), bytes);
    left = left.subspan(aligned(bytes, 8));
  }
  template <typename T>
  void get_all(std::vector<T>& values, uint64_t count) {
    if (count > left.size() / sizeof(T)) ok = false;
    if (!ok) return;
    values.resize(count);
    get(values.data(), values.size() * sizeof(T));
  }
};

// Behind the head, before the arrays: final_norm, embed_rows, head_rows, embed, lm_head.
using Singles = std::array<const void*, 5>;

size_t head_bytes(const Adapter& adapter) {
  const SavedTensors& saved = adapter.saved;
  size_t bytes = aligned(sizeof(Head), 8) + sizeof(Singles) + adapter.pairs.size() * sizeof(LoraPair);
  for (const auto& norms : saved.norms) bytes += norms.size() * sizeof(const float*);
  for (const auto* tokens : {&saved.embed_tokens, &saved.head_tokens})
    bytes += aligned(tokens->size() * sizeof(TokenId), 8);
  return aligned(bytes, kAlign);
}

// Storage of a received adapter.
struct Received {
  HostBuffer bytes;
  WeightPanel embed, lm_head;
};

WeightView view_of(const void* data, DType dtype, int32_t rows, int32_t cols, WeightPanel& panel) {
  if (data == nullptr) return {};
  panel = {static_cast<const std::byte*>(data), 0, rows};
  return {dtype, LayoutId::kPlain, rows, cols, {&panel, 1}};
}

Error not_an_adapter() {
  return internal_error(
      "A rank was sent something that is no adapter of this model; start all ranks from the same program.");
}

}  // namespace

size_t adapter_message_bytes(const Adapter& adapter, const CopyShape& shape) {
  return head_bytes(adapter) + static_cast<size_t>(copy_bytes(adapter, shape));
}

void write_adapter_message(const Adapter& adapter, const CopyShape& shape, std::span<std::byte> to) {
  CHECK(to.size() == adapter_message_bytes(adapter, shape));
  const size_t head_size = head_bytes(adapter);
  std::byte* const arrays = to.data() + head_size;
  const CopyPlan plan = plan_copy(adapter, shape, arrays);
  for (const LinkPart& part : plan.parts) std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
  Adapter& copy = plan.copy->adapter;
  const SavedTensors& saved = copy.saved;
  Head head;
  head.version = copy.version;
  head.digest = copy.digest;
  head.bytes = copy.bytes;
  head.rank_max = copy.rank_max;
  head.vocab = copy.vocab;
  for (size_t norm = 0; norm < kLayerNorms; ++norm) head.norms[norm] = saved.norms[norm].size();
  head.embed_tokens = saved.embed_tokens.size();
  head.head_tokens = saved.head_tokens.size();
  head.embed_rows_count = saved.embed.rows;
  head.head_rows_count = saved.lm_head.rows;
  head.embed_dtype = saved.embed.dtype;
  head.head_dtype = saved.lm_head.dtype;
  head.arrays_at = head_size;
  head.all = to.size();
  visit_pointers(copy, [&](auto& pointer) { to_offset(pointer, to.data()); });
  const std::byte* embed = saved.embed.empty() ? nullptr : plan.copy->embed.data;
  const std::byte* lm_head = saved.lm_head.empty() ? nullptr : plan.copy->lm_head.data;
  to_offset(embed, to.data());
  to_offset(lm_head, to.data());
  const Singles singles = {saved.final_norm, saved.embed_rows, saved.head_rows, embed, lm_head};
  Writer writer{to.data()};
  writer.put(&head, sizeof head);
  writer.put(singles.data(), sizeof singles);
  writer.put_all(copy.pairs);
  for (const auto& norms : saved.norms) writer.put_all(norms);
  writer.put_all(saved.embed_tokens);
  writer.put_all(saved.head_tokens);
  CHECK(writer.at <= arrays);
}

Result<Adapter> read_adapter_message(std::span<const std::byte> bytes, const CopyShape& shape) {
  auto storage = std::make_shared<Received>();
  TRY_ASSIGN(storage->bytes, HostBuffer::allocate(static_cast<int64_t>(bytes.size())));
  std::memcpy(storage->bytes.data(), bytes.data(), bytes.size());
  const std::byte* const base = storage->bytes.data();
  Reader reader{{base, bytes.size()}};
  Head head;
  reader.get(&head, sizeof head);
  if (!reader.ok || head.magic != kMagic || head.all != bytes.size()) return not_an_adapter();
  Adapter adapter;
  adapter.version = head.version;
  adapter.digest = head.digest;
  adapter.bytes = head.bytes;
  adapter.rank_max = head.rank_max;
  adapter.vocab = head.vocab;
  Singles singles{};
  reader.get(singles.data(), sizeof singles);
  SavedTensors& saved = adapter.saved;
  reader.get_all(adapter.pairs, static_cast<uint64_t>(shape.layers) * kLayerModules + 2);
  for (size_t norm = 0; norm < kLayerNorms; ++norm) reader.get_all(saved.norms[norm], head.norms[norm]);
  reader.get_all(saved.embed_tokens, head.embed_tokens);
  reader.get_all(saved.head_tokens, head.head_tokens);
  if (!reader.ok) return not_an_adapter();
  saved.final_norm = static_cast<const float*>(singles[0]);
  saved.embed_rows = static_cast<const float*>(singles[1]);
  saved.head_rows = static_cast<const float*>(singles[2]);
  bool inside = true;
  visit_pointers(adapter, [&](auto& pointer) { inside = to_pointer(pointer, base, head.all) && inside; });
  inside = to_pointer(singles[3], base, head.all) && inside;
  inside = to_pointer(singles[4], base, head.all) && inside;
  if (!inside) return not_an_adapter();
  saved.embed = view_of(singles[3], head.embed_dtype, head.embed_rows_count, shape.hidden, storage->embed);
  saved.lm_head = view_of(singles[4], head.head_dtype, head.head_rows_count, shape.hidden, storage->lm_head);
  adapter.storage = std::move(storage);
  return adapter;
}

}  // namespace loralei
