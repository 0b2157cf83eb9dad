#include "runtime/worker.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/schedule/replicate.h"
#include "runtime/runnable.h"

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

std::vector<EventPtr> Pending(std::initializer_list<EventPtr> events) {
  std::vector<EventPtr> result;
  for (const EventPtr& event : events) {
    if (event) result.push_back(event);
  }
  return result;
}

}  // namespace

Worker::Worker(const Program& program, const RankPlan& plan, const WorkerOptions& options,
               Compute& compute, Transport& transport, std::vector<double>& losses)
    : program_(program),
      schedule_(program.schedule()),
      plan_(plan),
      options_(options),
      compute_(compute),
      transport_(transport),
      losses_(losses),
      next_reduction_(program, plan.rank) {
  for (const StagePlan& stage : plan_.stages) {
    stages_.push_back(
        {.stage = stage.stage,
         .versions = VersionTable(program, stage.stage, stage.history, stage.weight_buffers),
         .gradient_buffers = stage.gradient_buffers,
         .same_delay = stage.same_delay,
         .activations = SlotPool(stage.activation_slots),
         .kept = SlotPool(stage.kept_slots)});
  }
  for (const MessagePlan& messages : plan_.messages) {
    if (messages.lane == kHandover) {
      handovers_ = messages.buffers;
      for (int k = handovers_ - 1; k >= 0; --k) free_handovers_.push_back(k);
      continue;
    }
    const Lane& ends = program.lanes()[static_cast<size_t>(messages.lane)];
    if (ends.sender == plan_.rank) {
      outgoing_[messages.lane].sent.resize(static_cast<size_t>(messages.buffers));
    } else {
      incoming_.push_back({messages.lane, LaneWalk(program, ends.sender)});
    }
  }
}

WorkerResult Worker::Run() {
  transport_.Open();
  for (const MessagePlan& messages : plan_.messages) {
    if (messages.lane == kHandover || outgoing_.contains(messages.lane)) continue;
    for (int buffer = 0; buffer < messages.buffers; ++buffer) {
      PostReceive(IncomingOf(messages.lane), buffer, {});
    }
  }
  for (LaneWalk walk(program_, plan_.rank); !walk.done(); walk.Advance()) {
    const RunAction& action = walk.action();
    if (options_.begin) options_.begin(At(action));
    try {
      Do(action);
      PostReductions();
      PostDue(false);
      SettleActions(options_.run_ahead);
      SettleTransfers(false);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", At(action), error.what()));
    }
  }
  SettleActions(0);
  SettleTransfers(true);
  transport_.Close();
  for (const StageState& state : stages_) {
    result_.peak_activations.push_back(state.activations.peak());
    result_.peak_kept.push_back(state.kept.peak());
    result_.peak_versions.push_back(state.versions.peak());
    result_.newest_weights.push_back(state.versions.newest_buffer());
  }
  return std::move(result_);
}

/// "rank 1 at 0F3".
std::string Worker::At(const RunAction& action) const {
  const int of =
      action.kind == ActionKind::kAllReduce ? action.stage : schedule_.SliceOf(action.stage);
  return fmt::format("{} at {}{}{}", RankName(schedule_, plan_.rank), of, KindName(action.kind),
                     action.microbatch);
}

void Worker::Do(const RunAction& action) {
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      DoStage(action);
      break;
    case ActionKind::kUpdate:
      DoUpdate(action);
      break;
    case ActionKind::kAllReduce:
      if (!reductions_.contains({action.stage, action.step})) DoReduction(action);
      break;
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      CHECK(false);
  }
}

Worker::StageState& Worker::StateOf(int stage) {
  const auto found = std::find_if(stages_.begin(), stages_.end(),
                                  [&](const StageState& state) { return state.stage == stage; });
  CHECK(found != stages_.end());
  return *found;
}

Worker::IncomingLane& Worker::IncomingOf(int lane) {
  const auto found = std::find_if(incoming_.begin(), incoming_.end(),
                                  [&](const IncomingLane& in) { return in.lane == lane; });
  CHECK(found != incoming_.end());
  return *found;
}

/// For the next message of the lane that has no receive yet, if the run has one.
void Worker::PostReceive(IncomingLane& lane, int buffer, std::vector<EventPtr> after) {
  for (; !lane.sender.done(); lane.sender.Advance()) {
    const RunAction& a = lane.sender.action();
    if (program_.ProducedLane(a.kind, a.stage) == lane.lane) break;
  }
  if (lane.sender.done()) return;
  const RunAction producer = lane.sender.action();
  lane.sender.Advance();
  const bool forward = IsForward(producer.kind);
  const EventPtr arrived = transport_.Post(
      {lane.lane, false, compute_.MessageBuffer(lane.lane, buffer), options_.message_bytes}, after);
  const int consumer = forward ? producer.stage + 1 : producer.stage - 1;
  PostedOf(forward)[{consumer, producer.microbatch}] = {arrived, lane.lane, buffer};
}

int Worker::SlotPool::Take(int64_t microbatch) {
  CHECK(!free_.empty());  // more in flight than the program's own peak
  const int slot = free_.back();
  free_.pop_back();
  taken_[microbatch] = slot;
  peak_ = std::max(peak_, static_cast<int>(taken_.size()));
  return slot;
}

int Worker::SlotPool::Of(int64_t microbatch) const {
  const auto found = taken_.find(microbatch);
  CHECK(found != taken_.end());
  return found->second;
}

int Worker::SlotPool::Release(int64_t microbatch) {
  const int slot = Of(microbatch);
  free_.push_back(slot);
  taken_.erase(microbatch);
  return slot;
}

/// F, B, I or W.
void Worker::DoStage(const RunAction& action) {
  StageState& state = StateOf(action.stage);
  ComputeTask task;
  task.action = action;
  TakeSlots(action, state, task);
  const bool reads = action.kind != ActionKind::kBackwardWeight;
  const int64_t version = reads ? VersionReadBy(action) : 0;
  if (reads) task.weights = state.versions.BufferOf(version);
  const EventPtr buffer_free = PlaceOutput(action, task);
  const Message message = TakeMessage(action, task);

  const std::vector<EventPtr> after = Pending({message.arrived, buffer_free});
  const auto happened = [](const EventPtr& event) { return event->Happened(); };
  if (!std::all_of(after.begin(), after.end(), happened)) PostDue(true);
  const EventPtr done = compute_.Start(task, after);
  if (reads) state.versions.Read(version);
  if (message.arrived) {
    const bool forward = IsForward(action.kind);
    RecordTransfer(forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, action,
                   program_.lanes()[static_cast<size_t>(message.lane)].sender, message.arrived);
    // Before anything is sent: whoever takes that may be waiting for this.
    PostReceive(IncomingOf(message.lane), message.buffer, Pending({done}));
  } else if (message.buffer >= 0) {
    free_handovers_.push_back(message.buffer);
  }
  SendOutput(action, task, done);
  if (YieldsWeightGradient(action.kind)) ++gradients_issued_[{action.stage, action.step}];
  Record(action, done, Pending({message.arrived}));
}

/// Negative: one that was made before this run.
int64_t Worker::VersionReadBy(const RunAction& action) const {
  const int delay = program_.ReadDelay(action.stage, action.position);
  return std::max(-options_.first_step, action.step - delay);
}

void Worker::TakeSlots(const RunAction& action, StageState& state, ComputeTask& task) {
  const int64_t i = action.microbatch;
  task.activation = IsForward(action.kind)              ? state.activations.Take(i)
                    : YieldsWeightGradient(action.kind) ? state.activations.Release(i)
                                                        : state.activations.Of(i);
  if (action.kind == ActionKind::kBackwardInput) task.kept = state.kept.Take(i);
  if (action.kind == ActionKind::kBackwardWeight) task.kept = state.kept.Release(i);
  if (YieldsWeightGradient(action.kind)) {
    task.gradients = static_cast<int>(action.step % state.gradient_buffers);
  }
  if (IsForward(action.kind) && schedule_.IsLast(action.stage)) {
    task.loss = &losses_[static_cast<size_t>(i)];
  }
}

/// What the action consumes, if anything.
Worker::Message Worker::TakeMessage(const RunAction& action, ComputeTask& task) {
  if (!HasInput(schedule_, action.kind, action.stage)) return {};
  auto& posted = PostedOf(IsForward(action.kind));
  const auto found = posted.find({action.stage, action.microbatch});
  CHECK(found != posted.end());
  const Message message = found->second;
  posted.erase(found);
  task.input = compute_.MessageBuffer(message.lane, message.buffer);
  return message;
}

/// Gives the action a buffer for what it produces, if anything. Returns what must have happened
/// before it is overwritten.
EventPtr Worker::PlaceOutput(const RunAction& action, ComputeTask& task) {
  if (!HasOutput(schedule_, action.kind, action.stage)) return nullptr;
  const int lane = program_.ProducedLane(action.kind, action.stage);
  if (lane >= 0) {
    OutgoingLane& out = outgoing_.at(lane);
    task.output = compute_.MessageBuffer(lane, static_cast<int>(out.next));
    return out.sent[out.next];
  }
  const bool forward = IsForward(action.kind);
  CHECK(!free_handovers_.empty());  // more held at once than was counted
  const int buffer = free_handovers_.back();
  free_handovers_.pop_back();
  result_.peak_handovers =
      std::max(result_.peak_handovers, handovers_ - static_cast<int>(free_handovers_.size()));
  task.output = compute_.MessageBuffer(kHandover, buffer);
  PostedOf(forward)[{forward ? action.stage + 1 : action.stage - 1, action.microbatch}] = {
      nullptr, kHandover, buffer};
  return nullptr;
}

void Worker::SendOutput(const RunAction& action, const ComputeTask& task, const EventPtr& done) {
  const int lane = program_.ProducedLane(action.kind, action.stage);
  if (lane < 0) return;
  OutgoingLane& out = outgoing_.at(lane);
  const EventPtr sent =
      transport_.Post({lane, true, task.output, options_.message_bytes}, Pending({done}));
  out.sent[out.next] = sent;
  out.next = (out.next + 1) % out.sent.size();
  RecordTransfer(IsForward(action.kind) ? ActionKind::kSendForward : ActionKind::kSendBackward,
                 action, program_.lanes()[static_cast<size_t>(lane)].receiver, sent);
}

void Worker::DoUpdate(const RunAction& action) {
  PostDue(true);
  StageState& state = StateOf(action.stage);
  ComputeTask task;
  task.action = action;
  task.gradients = static_cast<int>(action.step % state.gradient_buffers);
  std::vector<EventPtr> after;
  std::vector<std::shared_ptr<Reduction>> used;
  for (size_t g = 0; g < schedule_.groups.size(); ++g) {
    const CollectiveGroup& group = schedule_.groups[g];
    if (!IsMember(group, action.stage)) continue;
    used.push_back(reductions_.at({static_cast<int>(g), action.step}));
    after.push_back(used.back()->done);
    if (group.purpose == Purpose::kNorm) task.norms = used.back()->values.data();
  }
  if (state.same_delay) task.taken_at = state.versions.BufferTakenAt(action.step);
  const VersionTable::Target target = state.versions.Advance();
  task.weights = target.source;
  task.target = target.target;
  const EventPtr done = compute_.Start(task, after);
  Record(action, done, after).used = std::move(used);
  gradients_issued_.erase({action.stage, action.step});
  // Updates of one rank are less than a window of steps apart.
  const auto past = [&](const auto& entry) {
    return entry.first.second + program_.step_window() < action.step;
  };
  std::erase_if(reductions_, past);
  std::erase_if(norms_, past);
}

Worker::Issued& Worker::Record(const RunAction& action, const EventPtr& event,
                               std::vector<EventPtr> data) {
  last_issued_ = event;
  actions_.push_back(
      {{.rank = plan_.rank,
        .kind = action.kind,
        .stage = action.stage,
        .microbatch = action.microbatch,
        .weight_version =
            action.kind == ActionKind::kBackwardWeight ? -1 : program_.WeightVersion(action)},
       event,
       std::move(data)});
  return actions_.back();
}

void Worker::RecordTransfer(ActionKind kind, const RunAction& action, int peer,
                            const EventPtr& event) {
  transfers_.push_back({{.rank = plan_.rank,
                         .kind = kind,
                         .stage = action.stage,
                         .microbatch = action.microbatch,
                         .peer = peer,
                         .bytes = static_cast<Bytes>(options_.message_bytes)},
                        event});
}

void Worker::Keep(const Span& span) {
  const int64_t step =
      HasMicrobatch(span.kind) ? span.microbatch / schedule_.microbatches : span.microbatch;
  if (step < options_.traced_steps) result_.spans.push_back(span);
}

/// Turns actions into spans, oldest first, until `keep` are left: this bounds how far the host runs
/// ahead of a device.
void Worker::SettleActions(size_t keep) {
  while (actions_.size() > keep || (!actions_.empty() && actions_.front().event->Happened())) {
    const Issued& issued = actions_.front();
    issued.event->Wait();
    const Interval when = issued.event->When();
    Nanoseconds ready = lane_free_;
    for (const EventPtr& data : issued.data) ready = std::max(ready, data->When().end);
    Span span = issued.span;
    if (options_.watch && IsForward(span.kind) && schedule_.IsLast(span.stage)) {
      options_.watch(span.microbatch, losses_[static_cast<size_t>(span.microbatch)]);
    }
    span.start = when.start;
    span.end = when.end;
    span.wait = std::min(ready, when.start) - std::min(lane_free_, when.start);
    lane_free_ = when.end;
    Keep(span);
    actions_.pop_front();
  }
}

void Worker::SettleTransfers(bool all) {
  while (!transfers_.empty() && (all || transfers_.front().event->Happened())) {
    const Issued& issued = transfers_.front();
    issued.event->Wait();
    Span span = issued.span;
    span.start = issued.event->When().start;
    span.end = issued.event->When().end;
    Keep(span);
    transfers_.pop_front();
  }
}

}  // namespace pipelag
