// A pipeline schedule as data: the drawing in the paper. One periodic body per rank; any run is
// that body laid over all steps and clipped to the micro-batches that exist. Knows no hardware, no
// seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/schedule/action.h"

namespace pipelag {

/// Which weight version the actions of batch t read. c(a): updates of the action's own stage that
/// stand before action a in its lane.
enum class WeightPolicy : uint8_t {
  kFlush,           ///< c(a); every update stands behind all of its batch: delay 0
  kStashed,         ///< PipeDream: c of the batch's first F on that stage, for all its F, B, I
  kVerticalSync,    ///< PipeDream: c of the batch's first F on stage 0 of its stream
  kDoubleBuffered,  ///< PipeDream-2BW: max(t − 1, 0)
  kLatest,  ///< PACI: c(a), no stash, so F and B of a micro-batch may read different versions
};
std::string_view PolicyName(WeightPolicy policy);

/// The ranks of an AR: the holders of some stages.
struct CollectiveGroup {
  enum class Purpose : uint8_t {
    kReplicas,  ///< gradient reduction of one stage over its data-parallel replicas
    kWeights,   ///< gradient exchange of a weight group: stages that hold the same weights
    kNorm,      ///< global gradient norm over all stages
    kBarrier,   ///< flush barrier over all ranks, no data
    kShared,    ///< gradient exchange of the tensor that a first and a last stage share: the token
                ///< embedding, where the head is tied to it
  };
  Purpose purpose = Purpose::kReplicas;
  std::vector<int>
      stages;  ///< placed stages, ascending; AR(t) waits for their gradients of batch t
};

/// When a send of a given order ends.
enum class Sends : uint8_t {
  kRendezvous,  ///< with its receive: the sender waits until that is its peer's next action too
  kEager,       ///< at once: the receiver holds what came early
};

/// Whole stages' gradients, that is: a norm moves a few numbers, a barrier none, and the exchange
/// of a shared tensor has a time of its own.
constexpr bool MovesGradients(const CollectiveGroup& group) {
  return group.purpose == CollectiveGroup::Purpose::kReplicas ||
         group.purpose == CollectiveGroup::Purpose::kWeights;
}

/// Rounds towards −∞; b > 0.
constexpr int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
constexpr int64_t FloorMod(int64_t a, int64_t b) { return a - FloorDiv(a, b) * b; }

struct Schedule {
  std::string name;
  int ranks = 0;
  int stages = 0;        ///< slices of the network; p·v with one stream
  int streams = 1;       ///< directions; stream of micro-batch i: (i mod m) div (m / streams)
  int microbatches = 0;  ///< m, per step; a multiple of `streams`
  /// Data-parallel copies of a pipeline that are all in this schedule, side by side (replicate.h):
  /// `ranks`, `streams` and `microbatches` count those of all.
  int replicas = 1;
  WeightPolicy policy = WeightPolicy::kFlush;
  std::vector<int> placement;  ///< rank of each placed stage: streams · stages entries
  std::vector<CollectiveGroup> groups;
  /// Per rank the compute-lane actions of one step in order, U and AR included. A schedule with a
  /// flush has micro-batch numbers in [0, m).
  std::vector<std::vector<Action>> body;
  /// Per rank the body with its transfers in between, as a file gave them; empty if nobody did.
  /// SEND_F and SEND_B carry the stage that sends, RECV_F and RECV_B the one that receives. An AR
  /// stands where it is posted, which waits for nobody.
  std::vector<std::vector<Action>> given_order;
  Sends sends = Sends::kRendezvous;  ///< of `given_order`

  /// Each stream has its own copy of every stage: a *placed stage*. Placed stages of one slice hold
  /// the same weights.
  int placed_stages() const { return streams * stages; }
  int PlacedStage(int stream, int stage) const { return stream * stages + stage; }
  int SliceOf(int placed) const { return placed % stages; }
  int StreamOf(int placed) const { return placed / stages; }
  bool IsFirst(int placed) const { return SliceOf(placed) == 0; }
  bool IsLast(int placed) const { return SliceOf(placed) == stages - 1; }
  int StreamOfMicrobatch(int64_t microbatch) const;
  /// The step, relative to the body's own, that an action belongs to. Most are of the body's own,
  /// and a division is dear.
  int64_t ShiftOf(const Action& action) const {
    if (!HasMicrobatch(action.kind)) return action.microbatch;
    return InOwnStep(action.microbatch) ? 0 : FloorDiv(action.microbatch, microbatches);
  }
  /// A body action's micro-batch number within its step.
  int64_t WithinStep(const Action& action) const {
    return InOwnStep(action.microbatch) ? action.microbatch
                                        : FloorMod(action.microbatch, microbatches);
  }
  int microbatches_per_stream() const { return microbatches / streams; }
  int ranks_per_replica() const { return ranks / replicas; }
  int streams_per_replica() const { return streams / replicas; }
  int microbatches_per_replica() const { return microbatches / replicas; }
  int ReplicaOf(int rank) const { return rank / ranks_per_replica(); }
  bool flushes() const { return policy == WeightPolicy::kFlush; }
  bool InOwnStep(int32_t microbatch) const {
    return static_cast<uint32_t>(microbatch) < static_cast<uint32_t>(microbatches);
  }
};

/// Forwards that the first stage of a stream runs before its first gradient in an endless run: the
/// w_0 of the warm-up, or m − 1 and less with a flush. The greatest over the streams. The schedule
/// must be valid.
int64_t WarmUpForwards(const Schedule& schedule);

/// Steps of a run that nobody gave a number of: 1 with a flush, else enough to leave the warm-up,
/// max(10, ⌈2·w_0 / m⌉ + 10). The schedule must be valid.
int64_t DefaultSteps(const Schedule& schedule);

/// Something wrong with a schedule, and where.
struct Finding {
  std::string message;  ///< one sentence
  int rank = -1;        ///< -1: nowhere in particular
  int position = -1;    ///< index in the rank's body
};

/// An ill-formed schedule. what() is one sentence: the schedule's name, the first finding and how
/// many there are.
class ScheduleError : public Error {
 public:
  ScheduleError(const Schedule& schedule, std::vector<Finding> findings);
  /// The same, spoken of by the file it came from.
  ScheduleError InFile(const std::string& file) const;

  const std::vector<Finding>& findings() const { return findings_; }
  /// The schedule's grid with the bad cells marked; empty if no finding has a place in it.
  const std::string& grid() const { return grid_; }

 private:
  ScheduleError(const std::string& name, std::vector<Finding> findings, std::string grid);

  std::vector<Finding> findings_;
  std::string grid_;
};

/// Checks that need no execution: sizes, placement, every F, B or I+W and U exactly once and on its
/// own rank, OVERLAP pairs, groups, no action of a micro-batch before its own forward in its lane,
/// and every weight version read exists (`version x of stage s does not exist yet`). Deadlocks
/// across ranks are found when the schedule is lowered.
std::vector<Finding> Validate(const Schedule& schedule);

/// Of these the sizes, the placement and the groups only: what everything else indexes by.
std::vector<Finding> ValidateSizes(const Schedule& schedule);

}  // namespace pipelag
