// The known schedules by name. A generator is a pure function from sizes to a Schedule; a new one
// is one file, with its facts, and one line in the table of generators.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/schedule/facts.h"
#include "models/schedule/schedule.h"

namespace pipelag {

/// Times that a generator is handed, per stage, in any one unit. A backward that is never split:
/// all of it as `backward_input`.
struct GivenCosts {
  std::vector<int64_t> forward;
  std::vector<int64_t> backward_input;
  std::vector<int64_t> backward_weight;
  int64_t latency = 0;  ///< of every hop, either way
};

struct GeneratorOptions {
  int ranks = 1;
  int microbatches = 1;  ///< m, per update
  /// Warm-up forwards of stage s: slope · (p − 1 − s), capped by m at a flush. 0: the schedule's
  /// own.
  int warmup_slope = 0;
  bool reduction = false;  ///< an AR per stage before its U (data-parallel replicas)
  bool norm = false;       ///< one AR over all stages before every U (global-norm clipping)
  bool barrier = false;    ///< a global flush barrier before every U
  /// An AR between first and last stage before their U: they share a tensor (tied embedding).
  bool tied = false;
  /// Place of U in `2bw`: early, directly after the batch's last B; late, directly before the first
  /// F of batch t + 2. Default: late where an AR would stall the lane, else early.
  std::optional<bool> late_update = std::nullopt;
  /// Warm-up forwards per stage (per rank where a rank has several chunks), instead of a slope.
  std::vector<int> warmup = {};
  int chunks = 0;  ///< v, stages per rank. 0: the schedule's own
  /// Micro-batches that pass through one chunk before the next chunk's turn (N). 0: p.
  int group = 0;
  static constexpr int kFlexibleGroup = -1;  ///< PyTorch's: m / max(1, m div p)
  /// Order within a schedule without a flush, as the name of the schedule with a flush that has the
  /// same: "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v". Empty: the first, the second where
  /// there are chunks.
  std::string body = {};
  bool vertical_sync = false;  ///< `pipedream`: every stage reads the version of the first
  GivenCosts costs = {};       ///< of `zb-auto`; empty: all alike, no latency
  /// Of `zb-auto`: activations that a rank may hold, in units of a whole rank's (a chunk counts
  /// 1/v); rounded down to chunks. 0: p, as much as 1F1B.
  double memory_limit = 0;
  static constexpr int kChunksOfZbAuto = 2;  ///< where `chunks` does not say
};

struct Generator {
  /// Options beyond the sizes, reductions and barriers that a schedule honours.
  enum Uses : unsigned {
    kSizes = 0,
    kWarmUp = 1,
    kChunks = 2,
    kGroup = 4,
    kBody = 8,
    kVerticalSync = 16,
    kLateUpdate = 32,
    kCosts = 64,
    kInterleaved = kWarmUp | kChunks | kGroup,
    kEndless = kInterleaved | kBody,
    kPipeDream = kEndless | kVerticalSync,
    k2BW = kEndless | kLateUpdate,
    kAutomatic = kChunks | kCosts,
  };
  std::string_view name;
  std::string_view summary;  ///< one line for `list`
  Schedule (*generate)(const GeneratorOptions&);
  /// What is known in closed form of what `generate` makes of the same options, where it takes
  /// them.
  std::vector<Fact> (*facts)(const GeneratorOptions&);
  unsigned uses = kSizes;
};

std::span<const Generator> Generators();

/// Throws Error for an unknown name (naming the nearest known one) or options that a schedule
/// cannot honour.
Schedule Generate(std::string_view name, const GeneratorOptions& options);

}  // namespace pipelag
