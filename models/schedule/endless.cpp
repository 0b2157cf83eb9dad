#include "models/schedule/endless.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace pipelag {
namespace {

/// A place in a rank's endless order as seen from batch 0: greater is later.
struct Place {
  int64_t block = std::numeric_limits<int64_t>::min();
  size_t position = 0;
  auto operator<=>(const Place&) const = default;
};

/// Something to stand before the action at `position` of a body.
struct Insertion {
  size_t position = 0;
  Action action;
};

/// Where the gradients of a batch end and its forwards begin, per placed stage.
struct BatchPlaces {
  explicit BatchPlaces(const Schedule& schedule)
      : last_gradient(schedule.placement.size()), first_forward(schedule.placement.size()) {
    for (auto& place : first_forward) place.block = std::numeric_limits<int64_t>::max();
    for (const auto& body : schedule.body) {
      for (size_t i = 0; i < body.size(); ++i) {
        const Action& a = body[i];
        const Place place{-schedule.ShiftOf(a), i};
        if (YieldsWeightGradient(a.kind)) {
          last_gradient[a.stage] = std::max(last_gradient[a.stage], place);
        }
        if (IsForward(a.kind)) first_forward[a.stage] = std::min(first_forward[a.stage], place);
      }
    }
  }
  std::vector<Place> last_gradient;
  std::vector<Place> first_forward;
};

/// What goes into one rank's body, in the order in which it shall stand where positions are equal.
std::vector<Insertion> InsertionsOf(const Schedule& schedule, const BatchPlaces& places, int rank,
                                    bool late) {
  std::vector<int> stages;
  for (int s = 0; s < schedule.placed_stages(); ++s) {
    if (schedule.placement[static_cast<size_t>(s)] == rank) stages.push_back(s);
  }
  // U waits for every AR that names its stage, so it must not stand before one of them.
  std::vector<Place> earliest;
  for (const int s : stages) earliest.push_back(places.last_gradient[static_cast<size_t>(s)]);
  std::vector<Insertion> insertions;
  const auto insert_behind = [&](const Place& place, ActionKind kind, int stage) {
    insertions.push_back({place.position + 1, MakeAction(kind, stage, -place.block)});
  };
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    const auto& members = schedule.groups[g].stages;
    const auto is_member = [&](int stage) {
      return std::binary_search(members.begin(), members.end(), stage);
    };
    Place behind;
    for (const int s : stages) {
      if (is_member(s)) behind = std::max(behind, places.last_gradient[static_cast<size_t>(s)]);
    }
    if (behind == Place{}) continue;
    insert_behind(behind, ActionKind::kAllReduce, static_cast<int>(g));
    for (size_t i = 0; i < stages.size(); ++i) {
      if (is_member(stages[i])) earliest[i] = std::max(earliest[i], behind);
    }
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const Place& first = places.first_forward[static_cast<size_t>(stages[i])];
    const Place latest{first.block + 2, first.position};
    // With too few micro-batches no place is both: U stands where its gradients are whole, and what
    // is found missing is the version that the F reads.
    if (late && earliest[i] < latest) {
      insertions.push_back(
          {latest.position, MakeAction(ActionKind::kUpdate, stages[i], -latest.block)});
    } else {
      insert_behind(earliest[i], ActionKind::kUpdate, stages[i]);
    }
  }
  std::stable_sort(insertions.begin(), insertions.end(),
                   [](const auto& a, const auto& b) { return a.position < b.position; });
  return insertions;
}

std::string_view BodyName(const GeneratorOptions& options) {
  if (!options.body.empty()) return options.body;
  return options.chunks > 1 ? "interleaved-1f1b" : "1f1b";
}

}  // namespace

EndlessOrder EndlessBody(const GeneratorOptions& options) {
  const std::string_view name = BodyName(options);
  if (options.chunks > 1 && name != "interleaved-1f1b" && name != "zb-v") {
    throw Error(
        fmt::format("--body {} has one stage per rank, not --chunks {}", name, options.chunks));
  }
  const bool own_warm_up = options.warmup_slope > 0 || !options.warmup.empty();
  if (own_warm_up && name.starts_with("zb-")) {
    throw Error(fmt::format("--body {} has its own warm-up, it takes none", name));
  }
  if (options.group != 0 && name != "interleaved-1f1b") {
    throw Error(fmt::format("--body {} has no groups (--group)", name));
  }
  if (name == "1f1b") return Endless1F1B(options, 1);
  if (name == "interleaved-1f1b") return EndlessInterleaved(options);
  if (name == "zb-h1") return EndlessZbH1(options);
  if (name == "zb-h2") return EndlessZbH2(options);
  if (name == "zb-v") return EndlessZbV(options);
  throw Error(
      fmt::format("--body {} is not known; there are 1f1b, interleaved-1f1b, zb-h1, zb-h2 "
                  "and zb-v",
                  name));
}

std::vector<Fact> FactsOfEndlessBody(const GeneratorOptions& options) {
  const std::string_view name = BodyName(options);
  if (name == "1f1b") return FactsOfEndless1F1B(options);
  if (name == "interleaved-1f1b") return FactsOfEndlessInterleaved(options);
  if (name == "zb-h1") return FactsOfEndlessZbH1(options);
  if (name == "zb-h2") return FactsOfEndlessZbH2(options);
  return {};
}

std::optional<OwnDelay> OwnDelayOf(const GeneratorOptions& options) {
  const std::string_view name = BodyName(options);
  const int64_t p = options.ranks;
  if (name == "1f1b") {
    const bool plain = options.warmup.empty() && options.warmup_slope <= 1;
    return OwnDelay{plain ? "(p − 1 − s)" : "w_s", plain ? "(p − 1)" : "w_0", WarmUps(options, 1),
                    true};
  }
  // Their last W of a batch is put off by as many micro-batches as later stages run less ahead.
  const auto alike = [&](const char* formula, int64_t ahead) {
    return OwnDelay{formula, formula,
                    std::vector<int64_t>(static_cast<size_t>(options.ranks), ahead), false};
  };
  if (name == "zb-h1") return alike("(p − 1)", p - 1);
  if (name == "zb-h2") return alike("2(p − 1)", 2 * (p - 1));
  return std::nullopt;
}

Schedule CutToOneStep(std::string_view name, EndlessOrder order) {
  Schedule schedule = std::move(order.pipeline);
  schedule.name = name;
  schedule.policy = WeightPolicy::kFlush;
  const int64_t m = schedule.microbatches;
  for (auto& body : schedule.body) {
    const std::vector<Action> period = std::move(body);
    int64_t least = std::numeric_limits<int32_t>::max();
    int64_t greatest = std::numeric_limits<int32_t>::min();
    for (const Action& a : period) {
      least = std::min<int64_t>(least, a.microbatch);
      greatest = std::max<int64_t>(greatest, a.microbatch);
    }
    body.clear();
    body.reserve(period.size() * static_cast<size_t>(m / order.period) + schedule.groups.size() +
                 schedule.placement.size() / schedule.body.size());
    const int64_t end = FloorDiv(m - 1 - least, order.period) + 1;
    int64_t next = 0;
    for (int64_t block = -FloorDiv(greatest, order.period); block < end; block = next) {
      const int64_t base = block * order.period;
      next = end;
      for (Action a : period) {
        const int64_t number = base + a.microbatch;
        if (number < 0) {  // blocks with nothing in them are many where a rank runs far ahead
          next = std::min(next, -FloorDiv(a.microbatch, order.period));
        } else if (number < m) {
          a.microbatch = static_cast<int32_t>(number);
          body.push_back(a);
          next = block + 1;
        }
      }
    }
  }
  AppendUpdates(schedule);
  return schedule;
}

Schedule UpdateForever(std::string_view name, WeightPolicy policy, const EndlessOrder& order,
                       bool late) {
  Schedule schedule = order.pipeline;
  schedule.name = name;
  schedule.policy = policy;
  CHECK(schedule.microbatches % order.period == 0);
  for (auto& body : schedule.body) {
    const std::vector<Action> period = std::move(body);
    body.clear();
    for (int first = 0; first < schedule.microbatches; first += order.period) {
      for (Action a : period) {
        a.microbatch += first;
        body.push_back(a);
      }
    }
  }
  const BatchPlaces places(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    auto& body = schedule.body[static_cast<size_t>(rank)];
    const std::vector<Action> compute = std::move(body);
    body.clear();
    auto next = compute.begin();
    for (const Insertion& insertion : InsertionsOf(schedule, places, rank, late)) {
      const auto until = compute.begin() + static_cast<std::ptrdiff_t>(insertion.position);
      body.insert(body.end(), next, until);
      next = until;
      body.push_back(insertion.action);
    }
    body.insert(body.end(), next, compute.end());
  }
  return schedule;
}

}  // namespace pipelag
