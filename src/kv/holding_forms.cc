// SPDX-License-Identifier: Apache-2.0
#include "kv/holding_forms.h"

#include <utility>

#include "base/check.h"

namespace loralei {

void HoldingForms::set_capacity(int32_t holdings) {
  if (holdings > capacity()) forms_.resize(static_cast<size_t>(holdings));
}

void HoldingForms::link(int32_t holding, int32_t anchor) {
  HoldingForm& form = at(holding);
  HoldingForm& on = at(anchor);
  CHECK(holding != anchor && form.anchor == kNoHolding && form.dependants == 0 && can_be_anchor(anchor));
  form.anchor = anchor;
  form.prev = kNoHolding;
  form.next = on.first_dependant;
  if (form.next != kNoHolding) at(form.next).prev = holding;
  on.first_dependant = holding;
  ++on.dependants;
}

void HoldingForms::unlink(int32_t holding) {
  HoldingForm& form = at(holding);
  if (form.anchor == kNoHolding) return;
  HoldingForm& on = at(form.anchor);
  (form.prev == kNoHolding ? on.first_dependant : at(form.prev).next) = form.next;
  if (form.next != kNoHolding) at(form.next).prev = form.prev;
  --on.dependants;
  form.anchor = form.next = form.prev = kNoHolding;
}

void HoldingForms::keep_streams(int32_t holding, int32_t blob) {
  HoldingForm& form = at(holding);
  CHECK(coded(holding) && form.stream_blob == kNoBlob && blob != kNoBlob);
  form.stream_blob = blob;
  form.stream_prev = std::exchange(last_stream_, holding);
  (form.stream_prev == kNoHolding ? first_stream_ : at(form.stream_prev).stream_next) = holding;
  ++stream_blobs_;
}

int32_t HoldingForms::lose_streams(int32_t holding) {
  HoldingForm& form = at(holding);
  if (form.stream_blob == kNoBlob) return kNoBlob;
  (form.stream_prev == kNoHolding ? first_stream_ : at(form.stream_prev).stream_next) = form.stream_next;
  (form.stream_next == kNoHolding ? last_stream_ : at(form.stream_next).stream_prev) = form.stream_prev;
  form.stream_next = form.stream_prev = kNoHolding;
  --stream_blobs_;
  return std::exchange(form.stream_blob, kNoBlob);
}

void HoldingForms::check(const HoldingTable& table, const BlobArena& arena) const {
  int32_t blobs = 0;
  std::vector<int32_t> dependants(forms_.size(), 0);
  for (int32_t holding = 0; holding < capacity(); ++holding) {
    const HoldingForm& form = at(holding);
    if (!table.contains(holding)) {
      CHECK(!coded(holding) && form.anchor == kNoHolding && form.dependants == 0 && !form.blob_streams);
      continue;
    }
    if (coded(holding)) {
      ++blobs;
      CHECK(arena.owner_of(form.blob) == holding);
    }
    CHECK(!form.blob_streams || coded(holding));
    if (form.stream_blob != kNoBlob) {
      ++blobs;
      CHECK(form.blob_streams && arena.owner_of(form.stream_blob) == holding);
    }
    if (form.anchor == kNoHolding) continue;
    CHECK(coded(holding) && table.contains(form.anchor) && can_be_anchor(form.anchor));
    CHECK(table.text(holding) == table.text(form.anchor));
    ++dependants[static_cast<size_t>(form.anchor)];
  }
  CHECK(blobs == arena.blobs());
  int32_t streams = 0;
  for (int32_t one = first_stream_, before = kNoHolding; one != kNoHolding; before = one, one = at(one).stream_next) {
    CHECK(at(one).stream_blob != kNoBlob && at(one).stream_prev == before);
    ++streams;
  }
  CHECK(streams == stream_blobs_);
  for (int32_t holding = 0; holding < capacity(); ++holding) {
    CHECK(at(holding).dependants == dependants[static_cast<size_t>(holding)]);
    int32_t listed = 0, before = kNoHolding;
    for (int32_t one = at(holding).first_dependant; one != kNoHolding; before = one, one = at(one).next, ++listed)
      CHECK(at(one).anchor == holding && at(one).prev == before);
    CHECK(listed == at(holding).dependants);
  }
}

}  // namespace loralei
