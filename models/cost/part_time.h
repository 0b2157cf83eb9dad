// Seconds that one device takes for the work of one part of a network, by what is done in them.
// Knows neither stages nor schedules.
#pragma once

#include "models/architecture/work.h"
#include "models/cost/efficiency.h"
#include "models/hardware/machine.h"

namespace pipelag {

/// Sums over parts: every entry is additive.
struct PartSeconds {
  double forward = 0;            ///< on the device, collectives included
  double input = 0;              ///< backward for the input, collectives included
  double weight = 0;             ///< backward for the weights
  double again = 0;              ///< what is recomputed before the backward, collectives included
  double exchange_forward = 0;   ///< of `forward`: experts' all-to-alls
  double exchange_backward = 0;  ///< of `input` and `again`
  double forward_kernels = 0;
  double again_kernels = 0;

  PartSeconds& operator+=(const PartSeconds& other);
};

/// The groups of one rank of a run laid out in Megatron's order.
struct StageGroups {
  RankGroup tensor;
  RankGroup context;
  RankGroup expert;
};

struct PartSetting {
  const Machine* machine = nullptr;  ///< outlives it; so does the next
  const Efficiency* efficiency = nullptr;
  Precision precision = Precision::kBf16;
  bool flash = true;
  bool overlap_tensor = false;
  Recompute recompute = Recompute::kNone;
  StageGroups groups;
};

/// A backward repeats a product's FLOPs for the input and for the weights; of one without weights
/// twice for the input. Products by a weight whose sides are no multiples of 16 bytes take 1.4
/// times as long. Rings of context parallelism run beside attention, and count as far as they are
/// longer.
PartSeconds SecondsOf(const PartWork& work, const PartSetting& setting);

/// What the host needs at least to launch so many kernels.
double HostSeconds(double kernels, const Efficiency& efficiency);

}  // namespace pipelag
