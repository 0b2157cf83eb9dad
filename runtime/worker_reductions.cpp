// The reduce lane of a worker: gradients, norms and barriers that a rank shares with others.
#include <algorithm>

#include "runtime/runnable.h"
#include "runtime/worker.h"

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

}  // namespace

/// The reduce lane waits for gradients, not for the place of its ARs among computation: those that
/// are next on it and have all they sum are posted. A norm takes computation, so it keeps its
/// place.
void Worker::PostReductions() {
  for (; !next_reduction_.done(); next_reduction_.Advance()) {
    const RunAction& action = next_reduction_.action();
    if (action.kind != ActionKind::kAllReduce) continue;
    if (reductions_.contains({action.stage, action.step})) continue;
    const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(action.stage)];
    if (!MovesGradients(group) || !HasGradients(group, action.step)) return;
    DoReduction(action);
  }
}

/// Whether all that this rank has of a batch's gradients has been started.
bool Worker::HasGradients(const CollectiveGroup& group, int64_t step) const {
  return std::all_of(stages_.begin(), stages_.end(), [&](const StageState& state) {
    if (!IsMember(group, state.stage)) return true;
    const auto issued = gradients_issued_.find({state.stage, step});
    return issued != gradients_issued_.end() &&
           issued->second == schedule_.microbatches_per_stream();
  });
}

void Worker::DoReduction(const RunAction& action) {
  const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(action.stage)];
  const auto reduction = std::make_shared<Reduction>();
  reductions_[{action.stage, action.step}] = reduction;
  switch (group.purpose) {
    case Purpose::kNorm:
      norms_due_.emplace_back(action, reduction);
      PostNorms(false);
      return;
    case Purpose::kBarrier:
      reduction->done = transport_.PostAllReduce(action.stage, {}, LastIssued());
      break;
    case Purpose::kWeights:
      reduction->done = SumGradients(action);
      break;
    case Purpose::kReplicas:
      CHECK(false);
  }
  RecordReduction(action, reduction);
}

/// A norm is taken of gradients that have met those of their copies. The compute lane goes on
/// meanwhile, and takes it between two actions as soon as they have; `at_once`: it would have to
/// wait anyway, perhaps for somebody who waits for this norm.
void Worker::PostNorms(bool at_once) {
  for (; !norms_due_.empty(); norms_due_.pop_front()) {
    const auto& [action, reduction] = norms_due_.front();
    const std::vector<EventPtr> met = CopiesMet(action);
    const auto happened = [](const EventPtr& event) { return event->Happened(); };
    if (!at_once && !std::all_of(met.begin(), met.end(), happened)) return;
    reduction->values.assign(static_cast<size_t>(options_.norm_values), 0.0);
    reduction->done = transport_.PostAllReduce(action.stage, reduction->values,
                                               TakeNorms(action, reduction->values));
    RecordReduction(action, reduction);
  }
}

void Worker::RecordReduction(const RunAction& action, const std::shared_ptr<Reduction>& reduction) {
  transfers_.push_back({{.rank = plan_.rank,
                         .kind = ActionKind::kAllReduce,
                         .stage = action.stage,
                         .microbatch = action.step},
                        reduction->done,
                        {},
                        {reduction}});
}

/// What has to have happened before a norm is taken, of this rank's stages.
std::vector<EventPtr> Worker::CopiesMet(const RunAction& norm) const {
  std::vector<EventPtr> met;
  for (const StageState& state : stages_) {
    if (!IsMember(schedule_.groups[static_cast<size_t>(norm.stage)], state.stage)) continue;
    const CollectiveGroup* copies = WeightGroupOf(schedule_, state.stage);
    if (copies == nullptr) continue;
    const auto number = static_cast<int>(copies - schedule_.groups.data());
    met.push_back(reductions_.at({number, norm.step})->done);
  }
  return met;
}

/// Of each stage of the group that speaks for its slice.
std::vector<EventPtr> Worker::TakeNorms(const RunAction& action, std::vector<double>& norms) {
  const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(action.stage)];
  const std::vector<EventPtr> met = CopiesMet(action);
  std::vector<EventPtr> ready;
  for (const StageState& state : stages_) {
    if (!IsMember(group, state.stage) || !SpeaksIn(schedule_, group, state.stage)) continue;
    ComputeTask task;
    task.action = action;
    task.action.stage = state.stage;
    task.gradients = static_cast<int>(action.step % state.gradient_buffers);
    task.norms = norms.data();
    ready.push_back(compute_.Start(task, met));
  }
  return ready;
}

EventPtr Worker::SumGradients(const RunAction& action) {
  std::vector<GradientPart> parts;
  for (const StageState& state : stages_) {
    if (!IsMember(schedule_.groups[static_cast<size_t>(action.stage)], state.stage)) continue;
    const auto buffer = static_cast<int>(action.step % state.gradient_buffers);
    parts.push_back({state.stage, compute_.GradientBuffer(state.stage, buffer)});
  }
  return transport_.PostGradientSum(action.stage, parts, LastIssued());
}

/// What the compute lane has to have done for all that was issued to be done.
std::vector<EventPtr> Worker::LastIssued() const {
  if (!last_issued_) return {};
  return {last_issued_};
}

}  // namespace pipelag
