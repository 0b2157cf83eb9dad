// How much of a machine's peaks a training run gets out of it: few numbers with a physical meaning
// each, and what work and messages take by them. Knows no networks and no schedules.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "models/architecture/work.h"
#include "models/hardware/machine.h"

namespace pipelag {

/// The defaults describe well-written kernels and NCCL; the factors at the end are what
/// calibration sets. All times here are in seconds.
struct Efficiency {
  /// Products. A tile's start and end cost it as much as so much more depth k, and on average half
  /// of the multiprocessors stand still in the last wave of tiles.
  double ramp_depth = 128;
  double tail_waves = 0.5;
  int tile = 128;  ///< rows and columns of the result that a multiprocessor works on

  /// Attention by flash kernels: share of the peak at long rows of 128 numbers per head; a head of
  /// `attention_half_dim` would get half of what an endless one does.
  double attention = 0.45;
  double attention_half_dim = 32;
  /// Batched products of attention without flash: share of what a product of their shape gets.
  double batched = 0.7;

  double memory = 0.8;     ///< share of the bandwidth that passes over memory get
  double kernel = 5e-6;    ///< from the end of a kernel to the next, on the device
  double launch = 7.3e-5;  ///< by the host, of a kernel with what the framework does around it
  double inside = 0.77;    ///< share of the bandwidth inside a node that collectives get
  double between = 0.8;    ///< and of the network cards'
  double overlap = 0.7;  ///< share of collectives of a stage that running beside products hides, if
                         ///< those are long enough
  double collective = 1e-5;  ///< of every collective, before latencies

  double message = 2e-4;  ///< of a message between stages that blocks: the host waits for the
                          ///< device before and after it

  /// Factors on times. What a run takes over its kernels measured each alone on a cool device; the
  /// default is about what Megatron's and NeMo's public runs on A100 and H100 need
  /// (tests/validation).
  double compute_factor = 1.15;     ///< of products, passes and kernels
  double communication_factor = 1;  ///< of collectives and messages
  double microbatch_overhead = 0;   ///< on top of every F and every B of a rank's stages

  bool operator==(const Efficiency&) const = default;
};

/// Names of the numbers above, with what they stand for and their range; for files and for fitting.
struct EfficiencyTerm {
  std::string_view name;
  double Efficiency::*value;
  double least = 0;
  double most = 1;
};
const std::vector<EfficiencyTerm>& EfficiencyTerms();

/// JSON object with some of those names. Throws Error with file and JSON path for an unknown name
/// and what is no number in its term's range.
Efficiency ReadEfficiency(const std::filesystem::path& file);
void WriteEfficiency(const Efficiency& efficiency, const std::filesystem::path& file);

/// Operands and results are `bytes_per_number` wide; a product that fp8 does not reach (attention)
/// runs in 16 bits. Products without weights whose sides are no multiple of 8 miss the tensor
/// cores and run at the fp32 rate.
double ProductSeconds(const MatrixProduct& product, const Accelerator& accelerator,
                      Precision precision, bool flash, const Efficiency& efficiency);

/// Passes over memory, without what their kernels take.
double PassSeconds(Bytes bytes, const Accelerator& accelerator, const Efficiency& efficiency);

/// Ranks that send to each other: `members` of them, `stride` GPUs apart.
struct RankGroup {
  int members = 1;
  int stride = 1;
};

/// A collective of the group while all groups like it do the same: those of a node share its cards.
/// Rings and hierarchies of NCCL: (n − 1)/n of the vector passes every link, twice for an
/// all-reduce; between nodes a group has the cards of its members.
double CollectiveSeconds(CollectiveKind kind, Bytes bytes, const RankGroup& group,
                         const Machine& machine, const Efficiency& efficiency);

}  // namespace pipelag
