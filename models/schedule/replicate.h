// Data parallelism: several copies of one pipeline, each on ranks of its own and with micro-batches
// of its own, whose gradients meet before every update. Here they become one schedule, so that
// whatever reads schedules knows nothing of it. Knows no hardware.
#pragma once

#include <string>

#include "models/schedule/schedule.h"

namespace pipelag {

/// R copies of a schedule with p ranks, S streams and m micro-batches a step, all alike.
///
/// * Rank r of replica q is rank q·p + r: the ranks of a pipeline are neighbours (the order "pp-dp"
///   of Megatron-LM's --use-tp-pp-dp-mapping), and replica 0 has the numbers it has alone.
/// * A step has R·m micro-batches, the batch of all; q·m to (q + 1)·m − 1 of them are replica q's,
///   in whose schedule they are 0 to m − 1. Hence stream s of replica q is stream q·S + s.
/// * The AR of a stage over its replicas, and that of a weight group over the copies within a
///   pipeline, becomes one AR of purpose kWeights over all R·S copies. What it adds: the copies
///   within each replica first, (first + second) + …, then these sums in the order of the replicas.
/// * A norm and a barrier are each replica's own: after that AR all replicas hold the same
/// gradient.
///
/// With 1 replica the schedule as it is. Throws ScheduleError if a stage has no AR of gradients,
/// since its copies would drift apart, or if numbers leave their range.
Schedule Replicate(const Schedule& schedule, int replicas);

/// "rank 3", with replicas "rank 3 (replica 1)".
std::string RankName(const Schedule& schedule, int rank);

}  // namespace pipelag
