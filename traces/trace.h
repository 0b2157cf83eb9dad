// What happened: the one form in which simulated, measured and imported runs are held. Knows
// nothing of who produced it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/schedule/action.h"
#include "models/units.h"

namespace pipelag {

/// One action on one lane of one rank. Times count from the start of the run.
struct Span {
  int rank = 0;
  ActionKind kind = ActionKind::kForward;
  int stage = 0;           ///< placed stage; for AR: the group
  int64_t microbatch = 0;  ///< numbered over the whole run; for U and AR: the step
  int peer = -1;           ///< SEND_*/RECV_*: the other rank
  Nanoseconds start{0};
  Nanoseconds end{0};  ///< RECV_*: when the message was delivered, latency included
  /// Compute lane: how long the lane stood idle before `start` because data was missing.
  Nanoseconds wait{0};
  int64_t weight_version = -1;  ///< F, B, I: version read; U: version made; else -1
  Bytes bytes = 0;              ///< transfers
  bool overlapped = false;      ///< half of an OVERLAP(F, B): both halves have the same times

  bool operator==(const Span&) const = default;
};

/// A run. `spans` is ordered by (rank, lane, start), a lane being: compute; then per peer and
/// payload the send halves, the receive halves; then reduce.
struct Trace {
  std::string schedule;  ///< name, as the producer knew it
  int ranks = 0;
  int stages = 0;            ///< placed stages; stage_rank has as many entries
  int64_t microbatches = 0;  ///< per step
  int64_t steps = 0;
  std::vector<int> stage_rank;
  int64_t tokens_per_step = 0;  ///< 0 if not known
  /// Of the pipeline, that the trace holds, one behind the other: each has as many ranks, stages
  /// and micro-batches of a step.
  int replicas = 1;
  std::vector<Span> spans;

  bool operator==(const Trace&) const = default;
};

/// F, B, I, W, U.
constexpr bool OnComputeLane(ActionKind kind) { return kind <= ActionKind::kUpdate; }

/// Numbers the lanes of a rank in the order stated above: compute 0, then four per peer (send F,
/// receive F, send B, receive B), reduce last.
int64_t LaneNumber(const Span& span, int ranks);

/// Whether `a` and the span after it, `b`, are the two halves of one OVERLAP: one action, one time.
bool AreHalves(const Span& a, const Span& b);

/// The step an action belongs to: of U and AR their own, of all others that of their micro-batch.
int64_t StepOf(const Span& span, const Trace& trace);

/// "2F0", "1RECV_F3": <stage><kind><micro-batch>.
std::string SpanName(const Span& span);

/// "rank 3", of several replicas "rank 3 (replica 1)".
std::string RankName(const Trace& trace, int rank);

/// Brings `spans` into the order stated above; ties by end, then by order of appearance.
void SortSpans(Trace& trace);
bool AreSorted(const Trace& trace);

}  // namespace pipelag
