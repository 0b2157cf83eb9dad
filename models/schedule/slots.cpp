#include "models/schedule/slots.h"

#include <algorithm>
#include <unordered_map>

#include "models/schedule/play.h"

namespace pipelag {
namespace {

/// Of every rank the number of actions known to have ended: a vector clock.
using Clock = std::vector<int32_t>;

struct NoTime {
  int64_t Of(const RunAction&) const { return 0; }
  int64_t OfOverlap(const RunAction&, const RunAction&) const { return 0; }
  int64_t OfReduction(int) const { return 0; }
};

/// Where, in the receiver's order, the messages of each lane are consumed.
std::vector<std::vector<int32_t>> Consumptions(const Program& program) {
  std::vector<std::vector<int32_t>> consumptions(program.lanes().size());
  for (int rank = 0; rank < program.schedule().ranks; ++rank) {
    int32_t place = 0;
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
      if (walk.action().kind == ActionKind::kAllReduce) continue;
      ++place;
      const int lane = program.ConsumedLane(walk.action().kind, walk.action().stage);
      if (lane >= 0) consumptions[static_cast<size_t>(lane)].push_back(place);
    }
  }
  return consumptions;
}

/// Told every action behind its prerequisites, it keeps each rank's clock and sends it along with
/// each message.
class Learner {
 public:
  explicit Learner(const Program& program)
      : program_(program),
        schedule_(program.schedule()),
        consumptions_(Consumptions(program)),
        clocks_(static_cast<size_t>(schedule_.ranks),
                Clock(static_cast<size_t>(schedule_.ranks), 0)),
        produced_(program.lanes().size()),
        slots_(program.lanes().size(), 1),
        under_way_(program.lanes().size()) {}

  void OnCompute(int rank, const RunAction& action, int64_t, int64_t, int64_t, bool overlapped) {
    Learn(rank, action);
    if (overlapped && action.overlaps_next) {
      // Both halves have their inputs before either result is there.
      first_half_ = action;
      return;
    }
    if (overlapped) Publish(rank, first_half_);
    Publish(rank, action);
  }
  void OnTransfer(int, const RunAction&, int64_t, int64_t, int64_t, int64_t) {}
  void OnReduce(int, int, int64_t, int64_t, int64_t) {}

  std::vector<int> TakeSlots() { return std::move(slots_); }

 private:
  void Learn(int rank, const RunAction& action) {
    Clock& clock = clocks_[static_cast<size_t>(rank)];
    ++clock[static_cast<size_t>(rank)];
    const int lane = program_.ConsumedLane(action.kind, action.stage);
    if (lane < 0) return;
    auto& messages = under_way_[static_cast<size_t>(lane)];
    const int producer = IsForward(action.kind) ? action.stage - 1 : action.stage + 1;
    const auto message = messages.find(Key(producer, action.microbatch));
    for (size_t other = 0; other < clock.size(); ++other) {
      clock[other] = std::max(clock[other], message->second[other]);
    }
    messages.erase(message);
  }

  void Publish(int rank, const RunAction& action) {
    const int lane = program_.ProducedLane(action.kind, action.stage);
    if (lane < 0) return;
    const Clock& clock = clocks_[static_cast<size_t>(rank)];
    const auto l = static_cast<size_t>(lane);
    const int32_t ended = clock[static_cast<size_t>(program_.lanes()[l].receiver)];
    const auto& consumptions = consumptions_[l];
    const auto consumed =
        std::upper_bound(consumptions.begin(), consumptions.end(), ended) - consumptions.begin();
    slots_[l] = std::max(slots_[l], static_cast<int>(++produced_[l] - consumed));
    under_way_[l].emplace(Key(action.stage, action.microbatch), clock);
  }

  uint64_t Key(int stage, int64_t microbatch) const {
    return static_cast<uint64_t>(microbatch) * schedule_.placement.size() +
           static_cast<uint64_t>(stage);
  }

  const Program& program_;
  const Schedule& schedule_;
  std::vector<std::vector<int32_t>> consumptions_;
  std::vector<Clock> clocks_;
  std::vector<int64_t> produced_;
  std::vector<int> slots_;
  std::vector<std::unordered_map<uint64_t, Clock>> under_way_;
  RunAction first_half_;
};

}  // namespace

std::vector<int> NeverDelayingSlots(const Program& full) {
  // Beyond as many steps as the bodies reach across, the picture repeats.
  int64_t reach = 0;
  for (int rank = 0; rank < full.schedule().ranks; ++rank) {
    reach = std::max(reach, full.last_block(rank) - full.first_block(rank) - full.steps());
  }
  const Program program = full.WithSteps(std::min(full.steps(), 2 * reach + 3));
  Learner learner(program);
  const NoTime no_time;
  Play(program, no_time, PlayLinks{}, learner).Run();
  return learner.TakeSlots();
}

}  // namespace pipelag
