#include "runtime/worker.h"

#include <fmt/format.h>

#include <algorithm>

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

/// What the network's stages cannot do yet, or what one group of ranks alone cannot.
void CheckRunnable(const Schedule& schedule) {
  if (schedule.streams > 1) {
    throw Error(fmt::format("the runtime runs schedules with one direction; {} has {}",
                            schedule.name, schedule.streams));
  }
  for (const auto& body : schedule.body) {
    for (const Action& action : body) {
      if (action.kind == ActionKind::kBackwardInput) {
        throw Error(fmt::format("the runtime runs full backwards; {} splits them into I and W",
                                schedule.name));
      }
    }
  }
  for (const CollectiveGroup& group : schedule.groups) {
    if (group.purpose == Purpose::kReplicas || group.purpose == Purpose::kWeights) {
      throw Error("the runtime has no replicas whose gradients could be reduced");
    }
  }
  for (int s = 0; s + 1 < schedule.stages; ++s) {
    if (schedule.placement[static_cast<size_t>(s)] ==
        schedule.placement[static_cast<size_t>(s) + 1]) {
      throw Error(fmt::format("the runtime needs neighbouring stages on different ranks; stages {} "
                              "and {} share rank {}",
                              s, s + 1, schedule.placement[static_cast<size_t>(s)]));
    }
  }
}

std::vector<EventPtr> Pending(std::initializer_list<EventPtr> events) {
  std::vector<EventPtr> result;
  for (const EventPtr& event : events) {
    if (event) result.push_back(event);
  }
  return result;
}

}  // namespace

RankPlan PlanRank(const Program& program, int rank, const std::vector<int>& slots) {
  const Schedule& schedule = program.schedule();
  CheckRunnable(schedule);
  RankPlan plan{rank, {}, {}};
  for (int s = 0; s < schedule.placed_stages(); ++s) {
    if (schedule.placement[static_cast<size_t>(s)] != rank) continue;
    plan.stages.push_back({s, program.PeakInFlight(s), program.versions(s).weight_versions,
                           program.versions(s).gradient_buffers});
  }
  for (size_t lane = 0; lane < program.lanes().size(); ++lane) {
    const Lane& ends = program.lanes()[lane];
    // A sender holds as many messages as the receiver has room for, so that its copy never waits.
    if (ends.sender == rank || ends.receiver == rank) {
      plan.messages.push_back({static_cast<int>(lane), slots[lane]});
    }
  }
  return plan;
}

Worker::Worker(const Program& program, const RankPlan& plan, const WorkerOptions& options,
               Compute& compute, Transport& transport, std::vector<double>& losses)
    : program_(program),
      schedule_(program.schedule()),
      plan_(plan),
      options_(options),
      compute_(compute),
      transport_(transport),
      losses_(losses) {
  for (const StagePlan& stage : plan_.stages) {
    StageState state{.stage = stage.stage,
                     .versions = VersionTable(program, stage.stage),
                     .gradient_buffers = stage.gradient_buffers,
                     .free_activations = {}};
    for (int slot = stage.activation_slots - 1; slot >= 0; --slot) {
      state.free_activations.push_back(slot);
    }
    stages_.push_back(std::move(state));
  }
  for (const MessagePlan& messages : plan_.messages) {
    const Lane& ends = program.lanes()[static_cast<size_t>(messages.lane)];
    if (ends.sender == plan_.rank) {
      outgoing_[messages.lane].sent.resize(static_cast<size_t>(messages.buffers));
    } else {
      incoming_.push_back({messages.lane, LaneWalk(program, ends.sender)});
    }
  }
}

WorkerResult Worker::Run() {
  for (const MessagePlan& messages : plan_.messages) {
    if (outgoing_.contains(messages.lane)) continue;
    for (int buffer = 0; buffer < messages.buffers; ++buffer) {
      PostReceive(IncomingOf(messages.lane), buffer, {});
    }
  }
  for (LaneWalk walk(program_, plan_.rank); !walk.done(); walk.Advance()) {
    const RunAction& action = walk.action();
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
        DoStage(action);
        break;
      case ActionKind::kUpdate:
        DoUpdate(action);
        break;
      case ActionKind::kAllReduce:
        DoReduction(action);
        break;
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
      case ActionKind::kSendForward:
      case ActionKind::kReceiveForward:
      case ActionKind::kSendBackward:
      case ActionKind::kReceiveBackward:
        CHECK(false);
    }
    SettleActions(options_.run_ahead);
    SettleTransfers(false);
  }
  SettleActions(0);
  SettleTransfers(true);
  for (const StageState& state : stages_) {
    result_.peak_activations.push_back(state.peak_activations);
    result_.peak_versions.push_back(state.versions.peak());
    result_.newest_weights.push_back(state.versions.newest_buffer());
  }
  return std::move(result_);
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
  (forward ? posted_forward_ : posted_backward_)[{consumer, producer.microbatch}] = {
      arrived, lane.lane, buffer};
}

/// F or B.
void Worker::DoStage(const RunAction& action) {
  StageState& state = StateOf(action.stage);
  const bool forward = IsForward(action.kind);
  ComputeTask task;
  task.action = action;
  const int64_t version = program_.WeightVersion(action);
  task.weights = state.versions.BufferOf(version);
  if (forward) {
    CHECK(!state.free_activations.empty());  // more in flight than the program's own peak
    task.activation = state.free_activations.back();
    state.free_activations.pop_back();
    state.activation_of[action.microbatch] = task.activation;
    state.peak_activations =
        std::max(state.peak_activations, static_cast<int>(state.activation_of.size()));
    if (schedule_.IsLast(action.stage)) {
      task.loss = &losses_[static_cast<size_t>(action.microbatch)];
    }
  } else {
    const auto held = state.activation_of.find(action.microbatch);
    CHECK(held != state.activation_of.end());
    task.activation = held->second;
    task.gradients = static_cast<int>(action.step % state.gradient_buffers);
    // Free for the next F: the compute lane runs in order.
    state.free_activations.push_back(held->second);
    state.activation_of.erase(held);
  }

  Message message;
  const int consumed = program_.ConsumedLane(action.kind, action.stage);
  if (consumed >= 0) {
    auto& posted = forward ? posted_forward_ : posted_backward_;
    const auto found = posted.find({action.stage, action.microbatch});
    CHECK(found != posted.end());
    message = found->second;
    posted.erase(found);
    task.input = compute_.MessageBuffer(consumed, message.buffer);
  }
  const int produced = program_.ProducedLane(action.kind, action.stage);
  OutgoingLane* out = produced >= 0 ? &outgoing_.at(produced) : nullptr;
  EventPtr buffer_free;
  if (out != nullptr) {
    task.output = compute_.MessageBuffer(produced, static_cast<int>(out->next));
    buffer_free = out->sent[out->next];
  }

  const EventPtr done = compute_.Start(task, Pending({message.arrived, buffer_free}));
  state.versions.Read(version);
  if (out != nullptr) {
    const EventPtr sent =
        transport_.Post({produced, true, task.output, options_.message_bytes}, Pending({done}));
    out->sent[out->next] = sent;
    out->next = (out->next + 1) % out->sent.size();
    RecordTransfer(forward ? ActionKind::kSendForward : ActionKind::kSendBackward, action,
                   program_.lanes()[static_cast<size_t>(produced)].receiver, sent);
  }
  if (consumed >= 0) {
    RecordTransfer(forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, action,
                   program_.lanes()[static_cast<size_t>(consumed)].sender, message.arrived);
    PostReceive(IncomingOf(consumed), message.buffer, Pending({done}));
  }
  Record(action, done, Pending({message.arrived}));
}

void Worker::DoUpdate(const RunAction& action) {
  StageState& state = StateOf(action.stage);
  ComputeTask task;
  task.action = action;
  task.gradients = static_cast<int>(action.step % state.gradient_buffers);
  std::vector<EventPtr> after;
  std::vector<std::shared_ptr<Reduction>> used;
  for (size_t g = 0; g < schedule_.groups.size(); ++g) {
    const CollectiveGroup& group = schedule_.groups[g];
    if (std::find(group.stages.begin(), group.stages.end(), action.stage) == group.stages.end()) {
      continue;
    }
    used.push_back(reductions_.at({static_cast<int>(g), action.step}));
    after.push_back(used.back()->done);
    if (group.purpose == Purpose::kNorm) task.norms = used.back()->values.data();
  }
  const VersionTable::Target target = state.versions.Advance();
  task.weights = target.source;
  task.target = target.target;
  const EventPtr done = compute_.Start(task, after);
  Record(action, done, after).used = std::move(used);
  // Updates of one rank are less than a window of steps apart.
  std::erase_if(reductions_, [&](const auto& entry) {
    return entry.first.second + program_.step_window() < action.step;
  });
}

void Worker::DoReduction(const RunAction& action) {
  const CollectiveGroup& group = schedule_.groups[static_cast<size_t>(action.stage)];
  const auto shared = std::make_shared<Reduction>();
  reductions_[{action.stage, action.step}] = shared;
  Reduction& reduction = *shared;
  std::vector<EventPtr> ready;
  if (group.purpose == Purpose::kNorm) {
    reduction.values.assign(static_cast<size_t>(options_.norm_values), 0.0);
    for (const StageState& state : stages_) {
      if (std::find(group.stages.begin(), group.stages.end(), state.stage) == group.stages.end()) {
        continue;
      }
      ComputeTask task;
      task.action = action;
      task.action.stage = state.stage;
      task.gradients = static_cast<int>(action.step % state.gradient_buffers);
      task.norms = reduction.values.data();
      ready.push_back(compute_.Start(task, {}));
    }
  } else if (!actions_.empty()) {
    ready.push_back(actions_.back().event);
  }
  reduction.done = transport_.PostAllReduce(action.stage, reduction.values, ready);
  transfers_.push_back({{.rank = plan_.rank,
                         .kind = ActionKind::kAllReduce,
                         .stage = action.stage,
                         .microbatch = action.step},
                        reduction.done,
                        {},
                        {shared}});
}

Worker::Issued& Worker::Record(const RunAction& action, const EventPtr& event, std::vector<EventPtr> data) {
  actions_.push_back({{.rank = plan_.rank,
                       .kind = action.kind,
                       .stage = action.stage,
                       .microbatch = action.microbatch,
                       .weight_version = program_.WeightVersion(action)},
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
    span.start = when.start;
    span.end = when.end;
    span.wait = std::min(ready, when.start) - std::min(lane_free_, when.start);
    lane_free_ = when.end;
    result_.spans.push_back(span);
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
    result_.spans.push_back(span);
    transfers_.pop_front();
  }
}

}  // namespace pipelag
