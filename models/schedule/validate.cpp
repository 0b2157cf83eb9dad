// Validate: what can be wrong with a schedule before anything is executed. Later checks may rely on
// what the earlier ones found right. Deadlocks across ranks are Program's to find.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "models/schedule/schedule.h"
#include "models/schedule/text.h"
#include "models/schedule/versions.h"

namespace pipelag {
namespace {

constexpr size_t kMostFindings = 20;
/// A number that a file only claims must not fill the memory.
constexpr int64_t kMostCells = int64_t{1} << 29;

class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule) {}

  std::vector<Finding> RunSizes() {
    CheckSizes();
    return std::move(findings_);
  }

  std::vector<Finding> Run() {
    if (CheckSizes()) {
      CheckActions();
      if (findings_.empty()) CheckComplete();
      if (findings_.empty()) CheckLaneOrder();
      if (findings_.empty()) CheckVersions();
    }
    return std::move(findings_);
  }

 private:
  void Add(std::string message, int rank = -1, size_t position = 0) {
    if (findings_.size() == kMostFindings) {
      findings_.push_back({"further findings are not listed", -1, -1});
    }
    if (findings_.size() > kMostFindings) return;
    findings_.push_back({std::move(message), rank, rank < 0 ? -1 : static_cast<int>(position)});
  }

  bool CheckSizes() {
    const Schedule& s = schedule_;
    if (s.ranks < 1) Add(fmt::format("a schedule needs at least 1 rank, not {}", s.ranks));
    if (s.stages < 1) Add(fmt::format("a schedule needs at least 1 stage, not {}", s.stages));
    if (s.streams < 1) Add(fmt::format("a schedule needs at least 1 stream, not {}", s.streams));
    if (s.microbatches < 1) {
      Add(fmt::format("a step needs at least 1 micro-batch, not {}", s.microbatches));
    }
    if (s.replicas < 1) Add(fmt::format("there are {} replicas, 1 is the least", s.replicas));
    if (!findings_.empty()) return false;
    if (s.ranks % s.replicas != 0 || s.streams % s.replicas != 0) {
      Add(fmt::format("{} ranks and {} streams cannot be shared evenly by {} replicas", s.ranks,
                      s.streams, s.replicas));
    }
    if (s.microbatches % s.streams != 0) {
      Add(fmt::format("{} micro-batches cannot be shared evenly by {} streams", s.microbatches,
                      s.streams));
    }
    const int64_t placed = static_cast<int64_t>(s.streams) * s.stages;
    if (placed > std::numeric_limits<uint16_t>::max()) {
      Add(fmt::format("{} stages are more than the 65535 that a schedule can hold", placed));
    } else if (placed * s.microbatches > kMostCells) {
      Add(
          fmt::format("{} stages times {} micro-batches are more than the {} that a schedule can "
                      "hold",
                      placed, s.microbatches, kMostCells));
    } else if (static_cast<int64_t>(s.placement.size()) != placed) {
      Add(fmt::format("the placement names {} stages, the schedule has {}", s.placement.size(),
                      placed));
    }
    if (static_cast<int>(s.body.size()) != s.ranks) {
      Add(fmt::format("the schedule lists {} ranks, but it has {}", s.body.size(), s.ranks));
    }
    for (const int rank : s.placement) {
      if (rank < 0 || rank >= s.ranks) {
        Add(fmt::format("a stage is placed on rank {}, which does not exist", rank));
      }
    }
    for (size_t g = 0; g < s.groups.size(); ++g) {
      const std::vector<int>& stages = s.groups[g].stages;
      if (stages.empty()) Add(fmt::format("group {} has no stages", g));
      for (const int stage : stages) {
        if (stage < 0 || stage >= placed) {
          Add(fmt::format("group {} names stage {}, which does not exist", g, stage));
        }
      }
      if (std::adjacent_find(stages.begin(), stages.end(), std::greater_equal<>()) !=
          stages.end()) {
        Add(fmt::format("group {} does not name its stages in ascending order, each once", g));
      }
    }
    if (findings_.empty()) CheckShared();
    return findings_.empty();
  }

  /// The gradients of a shared tensor are one sum only if its holders update together.
  void CheckShared() {
    for (size_t g = 0; g < schedule_.groups.size(); ++g) {
      const CollectiveGroup& group = schedule_.groups[g];
      if (group.purpose != CollectiveGroup::Purpose::kShared) continue;
      const std::vector<int>& stages = group.stages;
      const auto first = [&](int stage) { return schedule_.IsFirst(stage); };
      const auto last = [&](int stage) { return schedule_.IsLast(stage); };
      if (schedule_.stages < 2 || stages.size() != 2 ||
          std::count_if(stages.begin(), stages.end(), first) != 1 ||
          std::count_if(stages.begin(), stages.end(), last) != 1) {
        Add(fmt::format("group {} is of a shared tensor, but not of one first and one last stage",
                        g));
      }
      if (schedule_.flushes() || schedule_.policy == WeightPolicy::kDoubleBuffered) continue;
      Add(
          fmt::format("first and last stage exchange the gradients of a shared tensor before every "
                      "update (group {}), which would undo a schedule of {} weights",
                      g, PolicyName(schedule_.policy)));
    }
  }

  void CheckActions() {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const auto& body = schedule_.body[static_cast<size_t>(rank)];
      for (size_t i = 0; i < body.size(); ++i) CheckAction(rank, i, body);
    }
  }

  void CheckAction(int rank, size_t i, const std::vector<Action>& body) {
    const Action& action = body[i];
    if (action.kind > ActionKind::kAllReduce) {
      Add("a body holds computation only, transfers are added by lowering", rank, i);
      return;
    }
    const auto text = [&] { return ActionText(schedule_, action); };  // only findings need it
    if (action.overlaps_next) {
      const bool pair = IsForward(action.kind) && i + 1 < body.size() &&
                        YieldsInputGradient(body[i + 1].kind) && !body[i + 1].overlaps_next;
      if (!pair) Add(fmt::format("{} overlaps nothing that is a B or an I", text()), rank, i);
    }
    if (action.kind == ActionKind::kAllReduce) {
      if (action.stage >= schedule_.groups.size()) {
        Add(fmt::format("AR names group {}, there are {}", action.stage, schedule_.groups.size()),
            rank, i);
      }
      return;
    }
    if (action.stage >= schedule_.placed_stages()) {
      Add(fmt::format("{} names a stage that does not exist: there are {}", text(),
                      schedule_.stages),
          rank, i);
      return;
    }
    const int home = schedule_.placement[action.stage];
    if (home != rank) {
      Add(fmt::format("{} stands on rank {}, but its stage is placed on rank {}", text(), rank,
                      home),
          rank, i);
    }
    if (HasMicrobatch(action.kind) &&
        schedule_.StreamOfMicrobatch(action.microbatch) != schedule_.StreamOf(action.stage)) {
      Add(fmt::format("{}: the micro-batch belongs to stream {}", text(),
                      schedule_.StreamOfMicrobatch(action.microbatch)),
          rank, i);
    }
  }

  size_t Index(const Action& a) const { return Index(a.stage, schedule_.WithinStep(a)); }
  size_t Index(int placed, int64_t within_step) const {
    return static_cast<size_t>(placed) * static_cast<size_t>(schedule_.microbatches) +
           static_cast<size_t>(within_step);
  }

  /// Every F once; B once, or I and W once each; every U once; every AR once on each member rank.
  void CheckComplete() {
    const auto bit = [](ActionKind kind) {
      return static_cast<uint8_t>(1u << static_cast<int>(kind));
    };
    std::vector<uint8_t> seen(static_cast<size_t>(schedule_.placed_stages()) *
                              static_cast<size_t>(schedule_.microbatches));
    std::vector<int> updates(static_cast<size_t>(schedule_.placed_stages()));
    std::vector<std::vector<int>> reductions(
        schedule_.groups.size(), std::vector<int>(static_cast<size_t>(schedule_.ranks)));
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const auto& body = schedule_.body[static_cast<size_t>(rank)];
      for (size_t i = 0; i < body.size(); ++i) {
        const Action& action = body[i];
        if (action.kind == ActionKind::kAllReduce) {
          ++reductions[action.stage][static_cast<size_t>(rank)];
        } else if (action.kind == ActionKind::kUpdate) {
          if (++updates[action.stage] == 2) {
            Add(fmt::format("stage {} is updated twice a step", schedule_.SliceOf(action.stage)),
                rank, i);
          }
        } else {
          uint8_t& mask = seen[Index(action)];
          const bool both =
              (action.kind == ActionKind::kBackward && (mask & bit(ActionKind::kBackwardInput))) ||
              (action.kind == ActionKind::kBackwardInput && (mask & bit(ActionKind::kBackward)));
          if (mask & bit(action.kind)) {
            Add(fmt::format("{} is there twice", ActionText(schedule_, action)), rank, i);
          } else if (both) {
            Add(fmt::format("{}: the micro-batch has both a B and an I",
                            ActionText(schedule_, action)),
                rank, i);
          }
          mask = static_cast<uint8_t>(mask | bit(action.kind));
        }
      }
    }
    CheckCounts(seen, updates, reductions);
  }

  void CheckCounts(const std::vector<uint8_t>& seen, const std::vector<int>& updates,
                   const std::vector<std::vector<int>>& reductions) {
    const auto has = [](uint8_t mask, ActionKind kind) {
      return (mask >> static_cast<int>(kind)) & 1;
    };
    for (int s = 0; s < schedule_.placed_stages(); ++s) {
      const int slice = schedule_.SliceOf(s);
      for (int i = 0; i < schedule_.microbatches; ++i) {
        if (schedule_.StreamOfMicrobatch(i) != schedule_.StreamOf(s)) continue;
        const uint8_t mask = seen[Index(s, i)];
        if (!has(mask, ActionKind::kForward)) Add(fmt::format("{}F{} is missing", slice, i));
        if (!has(mask, ActionKind::kBackward) && !has(mask, ActionKind::kBackwardInput)) {
          Add(fmt::format("{}B{} (or {}I{} with {}W{}) is missing", slice, i, slice, i, slice, i));
        } else if (has(mask, ActionKind::kBackwardInput) &&
                   !has(mask, ActionKind::kBackwardWeight)) {
          Add(fmt::format("{}W{} is missing", slice, i));
        } else if (has(mask, ActionKind::kBackward) && has(mask, ActionKind::kBackwardWeight)) {
          Add(fmt::format("{}W{} is there although {}B{} includes it", slice, i, slice, i));
        }
      }
      if (updates[static_cast<size_t>(s)] == 0) Add(fmt::format("stage {} has no U", slice));
    }
    for (size_t g = 0; g < reductions.size(); ++g) {
      std::vector<int> expected(static_cast<size_t>(schedule_.ranks));
      for (const int stage : schedule_.groups[g].stages) {
        expected[static_cast<size_t>(schedule_.placement[static_cast<size_t>(stage)])] = 1;
      }
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        const auto r = static_cast<size_t>(rank);
        if (reductions[g][r] != expected[r]) {
          Add(fmt::format("AR of group {} stands {} times on rank {}, {} expected", g,
                          reductions[g][r], rank, expected[r]));
        }
      }
    }
  }

  /// Within a lane: F before B or I, I before W, U behind the batch's last B and W.
  void CheckLaneOrder() {
    const size_t cells = static_cast<size_t>(schedule_.placed_stages()) *
                         static_cast<size_t>(schedule_.microbatches);
    // Where the F, and later the I, of a cell stands in the endless order, as seen from its batch.
    std::vector<int64_t> places(cells, std::numeric_limits<int64_t>::max());
    const std::vector<UpdatePlace> updates = FindUpdates(schedule_);
    const auto visit = [&](const auto& look) {
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        const auto& body = schedule_.body[static_cast<size_t>(rank)];
        const auto length = static_cast<int64_t>(body.size());
        for (size_t i = 0; i < body.size(); ++i) {
          if (!HasMicrobatch(body[i].kind)) continue;
          const int64_t place = static_cast<int64_t>(i) - schedule_.ShiftOf(body[i]) * length;
          look(body[i], place, length, rank, i);
        }
      }
    };
    bool split = false;
    visit([&](const Action& a, int64_t place, int64_t, int, size_t) {
      if (IsForward(a.kind)) places[Index(a)] = place;
      split = split || a.kind == ActionKind::kBackwardInput;
    });
    visit([&](const Action& a, int64_t place, int64_t length, int rank, size_t i) {
      if (IsForward(a.kind)) return;
      if (YieldsInputGradient(a.kind) && places[Index(a)] > place) {
        Add(fmt::format("{} stands before its own forward", ActionText(schedule_, a)), rank, i);
      }
      const UpdatePlace& u = updates[a.stage];
      if (YieldsWeightGradient(a.kind) && place > u.position - u.shift * length) {
        Add(fmt::format("{} stands after the update that applies its gradient",
                        ActionText(schedule_, a)),
            rank, i);
      }
    });
    if (!split) return;
    visit([&](const Action& a, int64_t place, int64_t, int, size_t) {
      if (a.kind == ActionKind::kBackwardInput) places[Index(a)] = place;
    });
    visit([&](const Action& a, int64_t place, int64_t, int rank, size_t i) {
      if (a.kind == ActionKind::kBackwardWeight && places[Index(a)] > place) {
        Add(fmt::format("{} stands before its own I", ActionText(schedule_, a)), rank, i);
      }
    });
  }

  void CheckVersions() {
    const std::vector<UpdatePlace> updates = FindUpdates(schedule_);
    const bool flush = schedule_.policy == WeightPolicy::kFlush;
    if (schedule_.policy == WeightPolicy::kLatest) return;
    const std::vector<int> delays =
        flush ? std::vector<int>(static_cast<size_t>(schedule_.placed_stages()), 0)
              : BatchDelays(schedule_, updates);
    std::vector<bool> told(delays.size());
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const auto& body = schedule_.body[static_cast<size_t>(rank)];
      for (size_t i = 0; i < body.size(); ++i) {
        const Action& a = body[i];
        if (!HasMicrobatch(a.kind) || a.kind == ActionKind::kBackwardWeight) continue;
        const int missing = DelayOfLatest(schedule_, updates[a.stage], static_cast<int>(i));
        if (missing <= delays[a.stage] || told[a.stage]) continue;
        told[a.stage] = true;
        Add(Explain(a, delays[a.stage], missing), rank, i);
      }
    }
  }

  std::string Explain(const Action& a, int delay, int missing) const {
    const int slice = schedule_.SliceOf(a.stage);
    const int64_t shift = schedule_.ShiftOf(a);
    // Spoken of in the first step in which the version counts from 0 upwards.
    const int64_t batch = std::max<int64_t>(shift, missing);
    std::string text = fmt::format(
        "version {} of stage {} does not exist yet at {}: batch {} reads version {}, but only {} "
        "updates stand before it in its lane",
        batch - delay, slice, ActionText(schedule_, a), batch, batch - delay, batch - missing);
    if (schedule_.policy == WeightPolicy::kDoubleBuffered) {
      text += fmt::format(
          "; double-buffered weights need at least as many micro-batches per update as stage {} "
          "runs ahead, and {} are too few",
          slice, schedule_.microbatches);
    }
    return text;
  }

  const Schedule& schedule_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> Validate(const Schedule& schedule) { return Validator(schedule).Run(); }

std::vector<Finding> ValidateSizes(const Schedule& schedule) {
  return Validator(schedule).RunSizes();
}

}  // namespace pipelag
