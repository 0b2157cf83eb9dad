// What of a run that shares links or cores is fixed before it starts: the way of every lane, and
// the members and rounds of every collective. Knows nothing of time passing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "models/cluster.h"
#include "models/schedule/program.h"
#include "sim/collective.h"
#include "sim/times.h"

namespace pipelag {

/// A run's messages and reductions as flows over a cluster.
struct NetworkOptions {
  const Cluster* cluster =
      nullptr;  ///< null: every lane has a wire of its own; must outlive the run
  /// Data-parallel copies of the pipeline, all of them played; rank r of replica q is rank q·p + r
  /// of the cluster. Figures and spans are those of replica 0.
  int replicas = 1;
  ReductionAlgorithm algorithm = ReductionAlgorithm::kRing;  ///< of gradients
  /// Gradients of each stage of the network; empty: their reductions take the times given instead
  /// of moving bytes.
  std::vector<Bytes> gradient_bytes{};
  /// A norm is summed over the ranks of a replica by a tree, in messages of this size; 0: it takes
  /// the time given.
  Bytes norm_bytes = 0;
  /// Where no channel is on the way of two lanes, or of a reduction, and there is a core for every
  /// rank, nothing is ever shared: the run is played without flows, with the same result.
  bool plain_if_unshared = true;
};

/// The ARs of one group: over all replicas for gradients, one per replica for norms and barriers.
struct Collective {
  int group = 0;
  std::vector<int> members;  ///< ranks of all replicas, ascending
  std::vector<CollectiveRound> rounds;
  bool timed = false;     ///< takes the time given; has no rounds
  int64_t gradients = 0;  ///< B or W that each AR waits for
  int64_t updates = 0;    ///< U that wait for each AR
};

class ContendedLayout {
 public:
  /// Throws Error if the cluster places too few ranks or the sizes do not fit the schedule.
  ContendedLayout(const Program& program, Bytes bytes_per_message, const NetworkOptions& options);
  /// Without a cluster: the ranks of all replicas share `cores`, every lane has a wire of its own
  /// on which messages take what `times` say.
  ContendedLayout(const Program& program, const ActionTimes& times, int replicas, int64_t cores);

  int CollectiveOf(int group, int replica) const {
    const Span& span = of_group_[static_cast<size_t>(group)];
    return span.first + (span.per_replica ? replica : 0);
  }
  const Route& RouteOf(int sender, int receiver) const {
    return routes[static_cast<size_t>(known_.at({sender, receiver}))];
  }

  /// `times` with those of messages and reductions replaced by what they take where nothing slows
  /// them. Nothing if a message or a norm takes longer on one replica than on another.
  std::optional<ActionTimes> TimesAlone(const Program& program, const ActionTimes& times) const;

  /// Whether any two messages could ever meet on a channel.
  bool MayShare() const;

  int replicas = 1;
  int64_t cores = 0;  ///< 0: each rank has one of its own
  std::vector<Bandwidth> channels;
  std::vector<Route> routes;
  std::vector<int> lane_routes;   ///< [replica][lane]: index in `routes`
  std::vector<Bytes> lane_bytes;  ///< [replica][lane]: of one message
  std::vector<Collective> collectives;
  std::vector<std::vector<int>> groups_of;  ///< per placed stage

 private:
  struct Span {
    int first = 0;
    bool per_replica = false;
  };

  LinkTime Alone(const Route& route, Bytes bytes) const;
  int64_t Alone(const Collective& collective, int64_t given) const;
  int Know(const Cluster& cluster, int sender, int receiver);
  void AddCollectives(const Schedule& schedule, const NetworkOptions& options);
  void AddCollective(const Schedule& schedule, const NetworkOptions& options, int group);

  std::vector<Span> of_group_;
  std::map<std::pair<int, int>, int> known_;
};

}  // namespace pipelag
