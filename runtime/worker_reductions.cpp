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
/// place. Every rank posts in the order of its lane, since one collective may have to wait for
/// another to end.
void Worker::PostReductions() {
  if (!due_.empty()) return;
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
  const std::shared_ptr<Reduction> reduction = group.purpose == Purpose::kNorm
                                                   ? NormOf(action.stage, action.step)
                                                   : std::make_shared<Reduction>();
  reductions_[{action.stage, action.step}] = reduction;
  const bool due = group.purpose == Purpose::kNorm || group.purpose == Purpose::kShared;
  if (!due) PostDue(true);
  switch (group.purpose) {
    case Purpose::kNorm:
    case Purpose::kShared:
      due_.emplace_back(action, reduction);
      PostDue(false);
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

/// A norm is taken, and the gradients of a shared tensor are exchanged, when gradients have met
/// those of their copies; the norm when that exchange is over, too. The compute lane goes on
/// meanwhile, and posts them between two actions as soon as that is so; `at_once`: it would have to
/// wait anyway, perhaps for somebody who waits for this.
void Worker::PostDue(bool at_once) {
  for (; !due_.empty(); due_.pop_front()) {
    const auto& [action, reduction] = due_.front();
    const std::vector<EventPtr> met = MetBefore(action);
    const auto happened = [](const EventPtr& event) { return event->Happened(); };
    if (!at_once && !std::all_of(met.begin(), met.end(), happened)) return;
    const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(action.stage)];
    reduction->done = group.purpose == Purpose::kNorm ? ReduceNorms(action, *reduction, met)
                                                      : SumShared(action, met);
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

/// What has to have happened before a norm is taken or a shared tensor's gradients are exchanged,
/// of this rank's stages.
std::vector<EventPtr> Worker::MetBefore(const RunAction& reduction) const {
  const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(reduction.stage)];
  std::vector<EventPtr> met;
  for (size_t g = 0; g < schedule_.groups.size(); ++g) {
    const CollectiveGroup& other = schedule_.groups[g];
    const bool before = other.purpose == Purpose::kWeights ||
                        (other.purpose == Purpose::kShared && group.purpose == Purpose::kNorm);
    if (before && std::any_of(stages_.begin(), stages_.end(), [&](const StageState& state) {
          return IsMember(group, state.stage) && IsMember(other, state.stage);
        })) {
      met.push_back(reductions_.at({static_cast<int>(g), reduction.step})->done);
    }
  }
  return met;
}

/// Made by whoever speaks of it first.
std::shared_ptr<Worker::Reduction> Worker::NormOf(int group, int64_t step) {
  std::shared_ptr<Reduction>& norm = norms_[{group, step}];
  if (!norm) {
    norm = std::make_shared<Reduction>();
    PlaceNorms(step, *norm);
  }
  return norm;
}

/// In the backend's memory, else in the reduction's own: zero after the event, if there is one.
void Worker::PlaceNorms(int64_t step, Reduction& reduction) {
  const NormPlace place = compute_.NormsOf(step);
  if (place.values.empty()) {
    reduction.own.assign(static_cast<size_t>(options_.norm_values), 0.0);
    reduction.values = reduction.own;
    return;
  }
  CHECK(place.values.size() == static_cast<size_t>(options_.norm_values));
  reduction.values = place.values;
  reduction.cleared = place.cleared;
}

/// Of each stage of the group that speaks for its slice.
EventPtr Worker::ReduceNorms(const RunAction& action, const Reduction& norm,
                             const std::vector<EventPtr>& met) {
  const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(action.stage)];
  std::vector<EventPtr> after = met;
  if (norm.cleared) after.push_back(norm.cleared);
  std::vector<EventPtr> ready = after;
  for (const StageState& state : stages_) {
    if (!IsMember(group, state.stage) || !SpeaksIn(schedule_, group, state.stage)) continue;
    ComputeTask task;
    task.action = action;
    task.action.stage = state.stage;
    task.gradients = static_cast<int>(action.step % state.gradient_buffers);
    task.norms = norm.values.data();
    ready.push_back(compute_.Start(task, after));
  }
  return transport_.PostAllReduce(action.stage, norm.values, ready);
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

/// The exchange takes the squared norm of the sum too, for the norm's own AR, which comes behind
/// it. The tensor is the first of all, and the holder that looks it up speaks for it.
EventPtr Worker::SumShared(const RunAction& action, std::vector<EventPtr> after) {
  const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(action.stage)];
  std::vector<GradientPart> parts;
  for (const EventPtr& event : LastIssued()) after.push_back(event);
  for (const StageState& state : stages_) {
    if (!IsMember(group, state.stage)) continue;
    const auto buffer = static_cast<int>(action.step % state.gradient_buffers);
    parts.push_back({state.stage, compute_.SharedGradient(state.stage, buffer), nullptr});
    if (!schedule_.IsFirst(state.stage) || options_.norm_values == 0) continue;
    for (size_t g = 0; g < schedule_.groups.size(); ++g) {
      const CollectiveGroup& all = schedule_.groups[g];
      if (all.purpose != Purpose::kNorm || !IsMember(all, state.stage) ||
          !SpeaksIn(schedule_, all, state.stage)) {
        continue;
      }
      const std::shared_ptr<Reduction> norm = NormOf(static_cast<int>(g), action.step);
      parts.back().squared_norm = norm->values.data();
      if (norm->cleared) after.push_back(norm->cleared);
    }
  }
  return transport_.PostGradientSum(action.stage, parts, after);
}

/// What the compute lane has to have done for all that was issued to be done.
std::vector<EventPtr> Worker::LastIssued() const {
  if (!last_issued_) return {};
  return {last_issued_};
}

}  // namespace pipelag
