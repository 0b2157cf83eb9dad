// Which layers each stage gets: as evenly in time as contiguous slices allow, within the memory of
// the ranks. Knows times and sizes per layer and where stages stand, no schedule and no clock.
#pragma once

#include <string>
#include <vector>

#include "models/costs.h"
#include "models/memory.h"
#include "models/network.h"
#include "models/schedule/program.h"
#include "models/units.h"

namespace pipelag {

/// What is never cut: a transformer block, an embedding, a head, an operator of a profile.
struct NetworkPart {
  std::string name;
  Nanoseconds forward{0};
  Nanoseconds backward{0};  ///< all of it
  /// The backward's two halves; both zero where only the whole is known.
  Nanoseconds backward_input{0};
  Nanoseconds backward_weight{0};
  StageMemory memory;  ///< of this part; `message`: what passes on if a cut is right behind it;
                       ///< of a stage's workspaces the largest counts,
  Bytes gathered = 0;  ///< and besides these of all its parts over the number
  int blocks = 0;      ///< of its blocks: the one that is whole of sharded weights
  bool layer = true;   ///< every stage gets at least one such; false: goes with its neighbour

  Nanoseconds Time() const { return forward + backward; }
};

/// Activations held of each part of a placed stage.
struct ActivationCounts {
  int whole = 1;
  int after_input = 0;  ///< what is left of them between I and W
};

/// What a placed stage does to its rank.
struct StagePlace {
  int rank = 0;
  /// At each of the rank's fullest moments, which are the same of all its stages.
  std::vector<ActivationCounts> held{{}};
  int weight_versions = 1;
  int gradient_buffers = 1;
  int forward_slots = 0;   ///< messages held for it from the stage before,
  int backward_slots = 0;  ///< and from the stage behind
};

struct PartitionSetting {
  int ranks = 1;
  int stages = 1;                  ///< slices of the network
  std::vector<StagePlace> places;  ///< streams · stages, as Schedule::placement
  Bandwidth bandwidth;             ///< between two stages
  Bytes memory_limit = 0;          ///< of a rank; 0: none
  /// Messages held for a rank, whose stages share lanes: what counts where messages are alike.
  std::vector<int> rank_slots;
};

/// As a lowered schedule places and holds them: HeldMemory. Where a rank has more than 64 fullest
/// moments, the greatest numbers of each stage are taken to be reached together.
PartitionSetting PartitionSettingOf(const Program& program, Bandwidth bandwidth,
                                    Bytes memory_limit);

struct Partition {
  std::vector<LayerRange> stages;      ///< parts of each, in order, none left out
  std::vector<Nanoseconds> rank_time;  ///< of one micro-batch of every stream, all stages added
  std::vector<Bytes> rank_memory;
  /// PipeDream's objective (Narayanan et al., SOSP 2019, section 3.1, without replication): the
  /// greatest of rank_time and of 2 · message ÷ bandwidth over the cuts between ranks.
  Nanoseconds bottleneck{0};
  bool proven = true;  ///< no split has a smaller bottleneck; always where ranks have one stage
};

/// What a given split comes to. `stages` cover all parts in order.
Partition AssessPartition(const std::vector<NetworkPart>& parts, std::vector<LayerRange> stages,
                          const PartitionSetting& setting);

/// The split with the least bottleneck of all that keep to the limit. Of several: the flattest
/// (least sum of squared stage times), then the one with more parts in front. With several stages
/// on a rank the search gives up beyond some 10^4 beginnings (`proven` is false then), and the
/// result is only as flat as moving single cuts makes it. Throws Error if there are more stages
/// than layers, and if no split fits: by how much the leanest one misses.
Partition BestPartition(const std::vector<NetworkPart>& parts, const PartitionSetting& setting);

/// Times per stage. The backward is split where every part knows its halves; `activation_bytes` is
/// what passes the largest cut.
Costs StageCosts(const std::vector<NetworkPart>& parts, const std::vector<LayerRange>& stages);
/// Sizes per stage; its message is the larger of those it sends either way. No device.
MemorySizes StageSizes(const std::vector<NetworkPart>& parts,
                       const std::vector<LayerRange>& stages);
/// What passes behind each stage but the last.
std::vector<Bytes> CutMessages(const std::vector<NetworkPart>& parts,
                               const std::vector<LayerRange>& stages);

/// As many layers (NetworkPart::layer) on each stage as `counts` says; other parts before the first
/// layer go to the first stage, others to the stage of the layer before them; a first or last stage
/// of no layers has those at its end alone, where there are any. Throws Error as SplitLayers.
std::vector<LayerRange> PartitionByCounts(const std::vector<NetworkPart>& parts,
                                          const std::vector<int>& counts);
/// The other way round.
std::vector<int> LayerCounts(const std::vector<NetworkPart>& parts,
                             const std::vector<LayerRange>& stages);

}  // namespace pipelag
