// What actions and messages cost, as explicit numbers per stage, and the cost file that holds them.
// Knows no clocks and no schedule.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/schedule/action.h"
#include "models/units.h"

namespace pipelag {

/// Times per *stage* (of all chunks of a rank each), indexed by the stage's place in the network.
/// `forward` and `update` always have one entry per stage. Backward times come fused, split, or
/// both; a list that is not known is empty.
struct Costs {
  std::vector<Nanoseconds> forward;
  std::vector<Nanoseconds> backward;         ///< B
  std::vector<Nanoseconds> backward_input;   ///< I
  std::vector<Nanoseconds> backward_weight;  ///< W
  std::vector<Nanoseconds> update;           ///< U
  std::vector<Nanoseconds> overlap;  ///< OVERLAP(F, B), by the stage of its F; if not known,
                                     ///< as long as the two one after the other
  Bytes activation_bytes = 0;        ///< one message of either payload between two stages
  Bandwidth p2p_bandwidth;           ///< occupies both halves of a lane
  Nanoseconds p2p_latency{0};        ///< occupies no lane
  std::string source;                ///< where the numbers come from, for people

  int stages() const { return static_cast<int>(forward.size()); }

  /// Duration of an F, B, I, W or U of `stage`. A B that is known only by its halves takes the sum
  /// of the two. Throws Error naming the flag if that time is not known.
  Nanoseconds Of(ActionKind kind, int stage) const;

  bool operator==(const Costs&) const = default;
};

/// A list of one entry stands for all stages; otherwise it must have `stages` entries, else Error
/// naming `flag`.
std::vector<Nanoseconds> PerStage(const std::vector<Nanoseconds>& times, int stages,
                                  const std::string& flag);

/// Cost file: JSON object with "forward_ns":[…], "backward_ns", "backward_input_ns",
/// "backward_weight_ns", "update_ns", "overlap_ns", "activation_bytes", "p2p_latency_ns",
/// "p2p_bandwidth_bytes_per_s" (0 = unlimited), "source". Needed are "forward_ns" and one form of
/// backward; whatever else is missing is zero or unknown. A key of any other name is an Error,
/// since it is most likely a slip of the pen. Throws Error with file and JSON path.
Costs ReadCosts(const std::filesystem::path& file);

/// Written to a temporary name, then renamed. Throws Error if that fails.
void WriteCosts(const Costs& costs, const std::filesystem::path& file);

}  // namespace pipelag
