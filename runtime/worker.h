// Walks the lanes of one rank: starts its actions in order, posts receives early and sends at once,
// hands out slots, versions and accumulators. Does not know its backend, nor any schedule by name.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/compute.h"
#include "runtime/rank_plan.h"
#include "runtime/transport.h"
#include "runtime/versions.h"
#include "traces/trace.h"

namespace pipelag {

struct WorkerOptions {
  size_t message_bytes = 0;
  int64_t first_step = 0;  ///< updates done before this run, whose versions its batches may read
  int norm_values =
      0;  ///< tensors of the whole network: length of the vector that a norm's AR sums
  /// Told every micro-batch's Σ token losses by the worker that has them; throws to end the run.
  std::function<void(int64_t microbatch, double loss)> watch;
  /// Told of every action before it is begun, in the words that an error of it has in front.
  std::function<void(std::string at)> begin = {};
  int64_t traced_steps = std::numeric_limits<int64_t>::max();  ///< of those no spans are kept after
  size_t run_ahead = 64;  ///< actions issued before the oldest must have happened
};

/// What a rank's run came to, besides its weights. Per stage of the plan, in its order.
struct WorkerResult {
  std::vector<Span> spans;            ///< in no particular order
  std::vector<int> peak_activations;  ///< slots in use at once
  std::vector<int> peak_kept;
  std::vector<int> peak_versions;   ///< weight buffers in use at once
  std::vector<int> newest_weights;  ///< buffer of the last version
  int peak_handovers = 0;           ///< of the whole rank
};

class Worker {
 public:
  /// `losses`: Σ token losses per micro-batch of the run, written by the ranks with a last stage.
  Worker(const Program& program, const RankPlan& plan, const WorkerOptions& options,
         Compute& compute, Transport& transport, std::vector<double>& losses);

  /// Runs to the end. Throws whatever stopped it, an Error with rank and action in front.
  WorkerResult Run();
  /// After Run has thrown: the spans of what had been done.
  WorkerResult Unfinished() { return std::move(result_); }

 private:
  /// Posted to be received, or handed over within the rank: then it is there.
  struct Message {
    EventPtr arrived;
    int lane = kHandover;
    int buffer = -1;
  };
  /// Receives are posted for the messages of the sender in its order, one per free buffer.
  struct IncomingLane {
    int lane = 0;
    LaneWalk sender;
  };
  struct OutgoingLane {
    std::vector<EventPtr> sent;  // per buffer: its last send
    size_t next = 0;
  };
  /// Slots of one kind, taken by micro-batches.
  class SlotPool {
   public:
    explicit SlotPool(int slots) {
      for (int slot = slots - 1; slot >= 0; --slot) free_.push_back(slot);
    }
    int Take(int64_t microbatch);
    int Of(int64_t microbatch) const;
    /// Free for the next to take it: the compute lane runs in order.
    int Release(int64_t microbatch);
    int peak() const { return peak_; }

   private:
    std::vector<int> free_;
    std::map<int64_t, int> taken_;
    int peak_ = 0;
  };
  struct StageState {
    int stage = 0;
    VersionTable versions;
    int gradient_buffers = 1;
    bool same_delay = true;
    SlotPool activations;  // from F to B or W
    SlotPool kept;         // from I to W
  };
  /// A collective under way: the values it sums and the event after which they are there.
  struct Reduction {
    std::span<double> values;
    std::vector<double> own;  // where the backend has no place for the values
    EventPtr cleared;         // after which the values are zero; null: they are
    EventPtr done;
  };
  struct Issued {
    Span span;
    EventPtr event;
    std::vector<EventPtr> data = {};  // messages and collectives it was started after
    std::vector<std::shared_ptr<Reduction>> used = {};  // kept until it has happened
  };

  StageState& StateOf(int stage);
  IncomingLane& IncomingOf(int lane);
  void PostReceive(IncomingLane& lane, int buffer, std::vector<EventPtr> after);
  std::string At(const RunAction& action) const;
  void Do(const RunAction& action);
  void DoStage(const RunAction& action);
  int64_t VersionReadBy(const RunAction& action) const;
  void TakeSlots(const RunAction& action, StageState& state, ComputeTask& task);
  Message TakeMessage(const RunAction& action, ComputeTask& task);
  EventPtr PlaceOutput(const RunAction& action, ComputeTask& task);
  void SendOutput(const RunAction& action, const ComputeTask& task, const EventPtr& done);
  std::map<std::pair<int, int64_t>, Message>& PostedOf(bool forward) {
    return forward ? posted_forward_ : posted_backward_;
  }
  void DoUpdate(const RunAction& action);
  void PostReductions();
  bool HasGradients(const CollectiveGroup& group, int64_t step) const;
  void DoReduction(const RunAction& action);
  void PlaceNorms(int64_t step, Reduction& reduction);
  void PostDue(bool at_once);
  void RecordReduction(const RunAction& action, const std::shared_ptr<Reduction>& reduction);
  std::vector<EventPtr> MetBefore(const RunAction& reduction) const;
  EventPtr ReduceNorms(const RunAction& action, const Reduction& norm,
                       const std::vector<EventPtr>& met);
  EventPtr SumGradients(const RunAction& action);
  EventPtr SumShared(const RunAction& action, std::vector<EventPtr> after);
  std::shared_ptr<Reduction> NormOf(int group, int64_t step);
  std::vector<EventPtr> LastIssued() const;
  Issued& Record(const RunAction& action, const EventPtr& event, std::vector<EventPtr> data);
  void RecordTransfer(ActionKind kind, const RunAction& action, int peer, const EventPtr& event);
  void Keep(const Span& span);
  void SettleActions(size_t keep);
  void SettleTransfers(bool all);

  const Program& program_;
  const Schedule& schedule_;
  RankPlan plan_;
  WorkerOptions options_;
  Compute& compute_;
  Transport& transport_;
  std::vector<double>& losses_;
  std::vector<IncomingLane> incoming_;
  std::map<int, OutgoingLane> outgoing_;  // by lane
  std::vector<int> free_handovers_;
  int handovers_ = 0;                                          // buffers there are
  std::map<std::pair<int, int64_t>, Message> posted_forward_;  // by consuming stage and micro-batch
  std::map<std::pair<int, int64_t>, Message> posted_backward_;
  std::vector<StageState> stages_;
  std::map<std::pair<int, int64_t>, std::shared_ptr<Reduction>> reductions_;  // by group and step
  LaneWalk next_reduction_;
  std::map<std::pair<int, int64_t>, int> gradients_issued_;  // B and W, by stage and step
  EventPtr last_issued_;                                     // of the compute lane
  std::map<std::pair<int, int64_t>, std::shared_ptr<Reduction>> norms_;  // likewise, before posted
  std::deque<std::pair<RunAction, std::shared_ptr<Reduction>>> due_;
  std::deque<Issued> actions_;
  std::deque<Issued> transfers_;
  Nanoseconds lane_free_{0};
  WorkerResult result_;
};

}  // namespace pipelag
