// SPDX-License-Identifier: Apache-2.0
// ExpertScores: how often a step uses each expert of a mixture, of late, and which of
// those in memory goes first.
//
// A use counts 1 and halves every `half_life` uses of its layer: time is that of the
// layer, not of the whole model, since a layer whose turn comes later in a pass has not
// been used less than one whose turn was a moment ago. What is compared is the part of
// its layer's steps (counted in the same way) that used an expert. Of equal ones that
// goes first whose layer was used last, because it is needed again last: a model whose
// experts are all used in every step keeps a fixed part of them, where "least recently
// used" would keep none.
//
// Thread: one.
// Cost: used(), keep(), drop() and take_first() O(log experts), take_first() and the
// number of layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loralei {

class ExpertScores {
 public:
  // [layers][experts]; an expert's id is layer * experts + number in its layer.
  ExpertScores(int32_t layers, int32_t experts, double half_life = 256);

  // One step chose these experts (ids, each once) of a layer.
  void used(int32_t layer, std::span<const int32_t> ids);
  // May go from now on; may not any more.
  void keep(int32_t id);
  void drop(int32_t id);
  // The one that goes first of those kept in these layers (ascending), which is dropped;
  // -1: there is none.
  int32_t take_first(std::span<const int32_t> layers);
  // The part of its layer's steps of late that used it: 0 to 1.
  double score(int32_t id) const;
  bool kept(int32_t id) const { return place_[static_cast<size_t>(id)] >= 0; }

 private:
  // log2(uses) + uses of the layer / half_life, at the last use: what does not change
  // while time goes on.
  double key(int32_t id) const { return keys_[static_cast<size_t>(id)]; }
  double rate(int32_t id, int32_t layer) const;  // log2 of score()
  double time(int32_t layer) const { return static_cast<double>(steps_[static_cast<size_t>(layer)]) / half_life_; }
  std::vector<int32_t>& heap_of(int32_t id) { return heaps_[static_cast<size_t>(id / experts_)]; }
  void put(std::vector<int32_t>& heap, size_t place, int32_t id);
  void lift(std::vector<int32_t>& heap, size_t place);
  void sink(std::vector<int32_t>& heap, size_t place);

  const int32_t experts_;
  const double half_life_;
  std::vector<double> keys_;                 // by id
  std::vector<int32_t> place_;               // by id: in its layer's heap, or -1
  std::vector<int64_t> steps_;               // by layer: how often it was used
  std::vector<double> steps_of_late_;        // the same, as uses are counted
  std::vector<int64_t> last_;                // by layer: number of its last use among all layers'
  std::vector<std::vector<int32_t>> heaps_;  // by layer: ids, the lowest key first
  int64_t uses_ = 0;
};

}  // namespace loralei
