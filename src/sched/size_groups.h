// SPDX-License-Identifier: Apache-2.0
// Groups of alike sizes: K-means of numbers, exactly, and how many groups there should be
// (Chameleon, §4.2, "Determining the Number of Queues").
//
// Sorted numbers lie in groups one behind the other, so the best groups are found by a
// dynamic programme over their borders, in n log n steps for each group more.
//
// How many: the paper takes the number with the smallest sum of squares within the
// groups, which is always the largest. Queues are there so that a small request does not
// wait for a large one, so here it is the smallest number whose groups leave
// kWithinMost of the sizes' variance; one, where the sizes are alike to begin with
// (deviation below kAlike of the mean); and never so many that a group is smaller than
// kShareLeast of all.
//
// Pure functions. Failure: none; numbers must be finite and not negative (CHECK).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace loralei {

inline constexpr int32_t kSizeGroupsMax = 4;
inline constexpr double kWithinMost = 0.05, kAlike = 0.10, kShareLeast = 0.01;

struct SizeGroups {
  std::vector<double> centres;  // ascending, one a group; of no numbers: one group, centre 0
  std::vector<double> borders;  // midpoints between neighbouring centres
  double within = 0;            // the sum of squared distances to the centres

  int32_t count() const { return static_cast<int32_t>(centres.size()); }
  int32_t of(double size) const;  // the group whose borders it lies between
};

// `groups` of them, or as many as there are different numbers. sorted: ascending.
SizeGroups group_sizes(std::span<const double> sorted, int32_t groups);
// As many as the rule above says.
SizeGroups choose_size_groups(std::span<const double> sorted, int32_t groups_max = kSizeGroupsMax);

}  // namespace loralei
