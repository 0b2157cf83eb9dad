// `pipelag plan`: searches the layouts of a training run over a cluster for the fastest ones and
// for the front of speed, memory and gradient delay.
#include "sim/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/estimated_run.h"
#include "tools/flags.h"
#include "tools/input_digest.h"
#include "tools/plan_flags.h"
#include "tools/shared_work.h"
#include "tools/table.h"

namespace pipelag {
namespace {

constexpr const char* kResults[] = {"step_time_ns",   "tokens_per_s", "tokens_per_s_per_gpu",
                                    "tflops_per_gpu", "mfu",          "peak_memory_bytes",
                                    "gradient_delay", "command"};

class Plan {
 public:
  explicit Plan(const Arguments& arguments)
      : arguments_(arguments),
        task_(PlanTaskOf(arguments)),
        pattern_(PatternOf(arguments, task_.space)) {
    ReadSharedWork(arguments, work_);
    question_.memory = task_.memory;
    question_.top = static_cast<size_t>(arguments.CountOr("top", 10));
    if (!pattern_.empty()) {
      question_.ranked = [this](const PlanPoint& point) {
        return Matches(point.candidate, pattern_);
      };
    }
  }

  /// False on a process that only helps.
  bool Search(const ProcessPlace& place) {
    const std::vector<Candidate> candidates = EnumerateCandidates(task_.space);
    if (candidates.empty()) throw Error(WhyNothingDivides(task_.space));
    points_ = AssessCandidates(
        candidates,
        [this](const RunLayout& layout) {
          return EstimateRun(task_.run.model, task_.run.machine, layout, task_.run.efficiency);
        },
        work_.threads);
    CheckAnyFits();
    CheckPattern();
    chosen_ = PointsToSimulate(points_, question_, work_.threads, times_);
    SetUpWork();
    const std::vector<Row> rows = RunSharedWork(work_, place);
    if (place.rank > 0) return false;
    for (size_t i = 0; i < chosen_.size(); ++i) {
      times_[chosen_[i]] = Nanoseconds{ParseInteger(rows[i][work_.keys])};
    }
    ranking_ = Ranking(points_, times_);
    front_ = ParetoFront(points_, times_);
    return true;
  }

  std::string Text() const;
  nlohmann::ordered_json Json() const;

 private:
  bool Fits(const PlanPoint& point) const {
    return point.refusal.empty() && point.memory <= task_.memory;
  }
  size_t CountOf(bool (Plan::*of)(const PlanPoint&) const) const {
    return static_cast<size_t>(
        std::count_if(points_.begin(), points_.end(),
                      [&](const PlanPoint& point) { return (this->*of)(point); }));
  }
  bool Refused(const PlanPoint& point) const { return !point.refusal.empty(); }

  void CheckAnyFits() const {
    const PlanPoint* leanest = nullptr;
    for (const PlanPoint& point : points_) {
      if (Fits(point)) return;
      if (Refused(point)) continue;
      if (leanest == nullptr || point.memory < leanest->memory) leanest = &point;
    }
    if (leanest == nullptr) throw Error(points_.front().refusal);
    throw Error(fmt::format(
        "no layout fits: even the leanest ({}) needs {} on rank {}, {} more "
        "than the {} of a GPU",
        CandidateText(leanest->candidate), FormatBytes(leanest->memory), leanest->fullest_rank,
        FormatBytes(leanest->memory - task_.memory), FormatBytes(task_.memory)));
  }

  /// Without one that fits there is no place to be asked for, and a reason in its stead.
  void CheckPattern() {
    if (pattern_.empty()) return;
    const PlanPoint* nearest = nullptr;
    for (const PlanPoint& point : points_) {
      if (!Matches(point.candidate, pattern_)) continue;
      if (Fits(point)) return;
      if (nearest == nullptr || (Refused(*nearest) && !Refused(point)) ||
          (!Refused(point) && point.memory < nearest->memory)) {
        nearest = &point;
      }
    }
    if (nearest == nullptr) {
      throw Error(fmt::format("{}: there is no such layout of {} GPUs for a batch of {} sequences",
                              arguments_.PlaceOf("rank-of"), task_.space.gpus, task_.space.batch));
    }
    no_place_ = Refused(*nearest)
                    ? nearest->refusal
                    : fmt::format(
                          "does not fit: the leanest such layout ({}) needs {} on rank {}, "
                          "{} more than the {} of a GPU",
                          CandidateText(nearest->candidate), FormatBytes(nearest->memory),
                          nearest->fullest_rank, FormatBytes(nearest->memory - task_.memory),
                          FormatBytes(task_.memory));
    question_.ranked = nullptr;
  }

  void SetUpWork() {
    for (const auto& [name, value] : VaryingOf(points_[chosen_[0]].candidate)) {
      work_.columns.push_back({name, name != "schedule" && name != "recompute"});
    }
    for (const auto& [name, value] : task_.fixed) work_.columns.push_back({name, false});
    work_.keys = work_.columns.size();
    for (const char* name : kResults) {
      work_.columns.push_back({name, std::string_view(name) != "command"});
    }
    work_.columns.push_back({kInputsColumn, false});
    Fingerprint print;
    InputDigest inputs;
    for (const auto& [name, value] : task_.fixed) inputs.Add(value, print);
    work_.inputs.assign(chosen_.size(), print.Text());
    for (const size_t i : chosen_) {
      Row key;
      for (const auto& [name, value] : VaryingOf(points_[i].candidate)) key.push_back(value);
      for (const auto& [name, value] : task_.fixed) key.push_back(value.empty() ? "true" : value);
      work_.points.push_back(std::move(key));
    }
    work_.noun = "layouts";
    work_.evaluate = [this](size_t at) {
      const PlanPoint& point = points_[chosen_[at]];
      const auto& known = times_[chosen_[at]];
      const Nanoseconds time = known ? *known : SimulatePoint(point);
      const Throughput run = ThroughputOfPoint(point, time);
      return Row{fmt::format("{}", time.count()),
                 NumberText(run.tokens_per_s),
                 NumberText(run.tokens_per_s_per_gpu),
                 NumberText(run.tflops_per_gpu),
                 NumberText(run.mfu),
                 fmt::format("{}", point.memory),
                 fmt::format("{}", point.gradient_delay),
                 SimulateCommandOf(task_, point.candidate)};
    };
  }

  Throughput ThroughputOfPoint(const PlanPoint& point, Nanoseconds time) const {
    return ThroughputOf({time.count(), 1}, *point.estimate, point.candidate.layout,
                        task_.run.machine);
  }

  std::vector<size_t> Best() const {
    return {ranking_.begin(),
            ranking_.begin() + static_cast<ptrdiff_t>(std::min(ranking_.size(), question_.top))};
  }
  /// Place of the pattern's best in the ranking, from 0.
  size_t PlaceOfPattern() const {
    size_t place = 0;
    while (!Matches(points_[ranking_[place]].candidate, pattern_)) ++place;
    return place;
  }

  std::string TableOf(const std::vector<size_t>& points, bool numbered) const;
  nlohmann::ordered_json JsonOf(size_t point) const;

  const Arguments& arguments_;
  PlanTask task_;
  LayoutPattern pattern_;
  std::string no_place_;  ///< why the pattern has none
  PlanQuestion question_;
  SharedWork work_;
  std::vector<PlanPoint> points_;
  StepTimes times_;
  std::vector<size_t> chosen_;
  std::vector<size_t> ranking_;
  std::vector<size_t> front_;
};

std::string Plan::TableOf(const std::vector<size_t>& points, bool numbered) const {
  std::vector<std::vector<std::string>> table(1);
  if (numbered) table[0].push_back("");
  const auto shown = [&](const std::string& name) {
    return (name != "context" && name != "expert") ||
           std::any_of(points_.begin(), points_.end(), [&](const PlanPoint& point) {
             const Sharding& sharding = point.candidate.layout.sharding;
             return (name == "context" ? sharding.context : sharding.expert) > 1;
           });
  };
  for (const auto& [name, value] : VaryingOf({})) {
    if (shown(name)) table[0].push_back(name);
  }
  table[0].insert(table[0].end(), {"tokens/s/GPU", "MFU", "step time", "memory", "delay"});
  for (const size_t i : points) {
    std::vector<std::string> line;
    if (numbered) {
      const std::optional<size_t> place = PlaceOf(i, points_, question_, times_);
      line.push_back(place ? fmt::format("{}", *place + 1) : "");
    }
    for (const auto& [name, value] : VaryingOf(points_[i].candidate)) {
      if (shown(name)) line.push_back(value);
    }
    const Throughput run = ThroughputOfPoint(points_[i], *times_[i]);
    line.insert(line.end(), {fmt::format("{:.1f}", run.tokens_per_s_per_gpu), FormatShare(run.mfu),
                             FormatDuration(*times_[i]), FormatBytes(points_[i].memory),
                             fmt::format("{}", points_[i].gradient_delay)});
    table.push_back(std::move(line));
  }
  return FormatTable(table);
}

std::string Plan::Text() const {
  const size_t refused = CountOf(&Plan::Refused);
  const size_t fitting = CountOf(&Plan::Fits);
  const size_t shown = std::min(front_.size(), question_.top);
  std::string text = fmt::format(
      "{} on {} {} of {} ({} GPUs), {} sequences of {} tokens a step\n"
      "{} layouts: {} have sizes that do not go together, {} need more than {}, {} are beaten by "
      "their bounds alone, {} were simulated\n\nfastest:\n",
      task_.run.model.name, task_.run.nodes, task_.run.nodes == 1 ? "node" : "nodes",
      task_.run.machine.name, task_.space.gpus, task_.space.batch,
      task_.space.fixed.sharding.tokens, points_.size(), refused,
      points_.size() - refused - fitting, FormatBytes(task_.memory), fitting - chosen_.size(),
      chosen_.size());
  text += TableOf(Best(), true) +
          "\nfront of step time, memory and gradient delay (none of them is better in one and as "
          "good in the others):\n" +
          TableOf({front_.begin(), front_.begin() + static_cast<ptrdiff_t>(shown)}, true);
  if (shown < front_.size()) {
    text += fmt::format("({} more: --top {})\n", front_.size() - shown, front_.size());
  }
  if (!no_place_.empty()) text += fmt::format("\nasked for: {}\n", no_place_);
  if (!pattern_.empty() && no_place_.empty()) {
    const size_t place = PlaceOfPattern();
    const size_t point = ranking_[place];
    const auto best = static_cast<double>(times_[ranking_[0]]->count());
    text += fmt::format(
        "\nasked for: place {} of {}, at {:.1f} % of the best one's speed\n{}", place + 1, fitting,
        100 * best / static_cast<double>(times_[point]->count()), TableOf({point}, true));
  }
  return text + fmt::format("\nthe best by itself: {}\n",
                            SimulateCommandOf(task_, points_[ranking_[0]].candidate));
}

nlohmann::ordered_json Plan::JsonOf(size_t point) const {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : VaryingOf(points_[point].candidate)) {
    if (name == "schedule" || name == "recompute") {
      json[name] = value;
    } else {
      json[name] = ParseInteger(value);
    }
  }
  const Throughput run = ThroughputOfPoint(points_[point], *times_[point]);
  json["step_time_ns"] = times_[point]->count();
  json["tokens_per_s"] = run.tokens_per_s;
  json["tokens_per_s_per_gpu"] = run.tokens_per_s_per_gpu;
  json["tflops_per_gpu"] = run.tflops_per_gpu;
  json["mfu"] = run.mfu;
  json["peak_memory_bytes"] = points_[point].memory;
  json["gradient_delay"] = points_[point].gradient_delay;
  const std::optional<size_t> place = PlaceOf(point, points_, question_, times_);
  json["place"] = place ? nlohmann::ordered_json(*place + 1) : nlohmann::ordered_json();
  json["command"] = SimulateCommandOf(task_, points_[point].candidate);
  return json;
}

nlohmann::ordered_json Plan::Json() const {
  const size_t refused = CountOf(&Plan::Refused);
  const size_t fitting = CountOf(&Plan::Fits);
  nlohmann::ordered_json json = {{"gpus", task_.space.gpus},
                                 {"tokens_per_step", task_.tokens_per_step()},
                                 {"layouts", points_.size()},
                                 {"do_not_go_together", refused},
                                 {"do_not_fit", points_.size() - refused - fitting},
                                 {"beaten_by_bounds", fitting - chosen_.size()},
                                 {"simulated", chosen_.size()}};
  const auto list = [&](const std::vector<size_t>& points) {
    auto rows = nlohmann::ordered_json::array();
    for (const size_t point : points) rows.push_back(JsonOf(point));
    return rows;
  };
  json["best"] = list(Best());
  json["pareto"] = list(front_);
  if (!no_place_.empty()) {
    json["rank_of"] = {{"place", nullptr}, {"reason", no_place_}};
  } else if (!pattern_.empty()) {
    const size_t place = PlaceOfPattern();
    json["rank_of"] = JsonOf(ranking_[place]);
    json["rank_of"]["place"] = place + 1;
  }
  json["command"] = SimulateCommandOf(task_, points_[ranking_[0]].candidate);
  return json;
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const ProcessPlace place = ProcessPlaceOf();
  Plan plan(arguments);
  if (!plan.Search(place)) return 0;
  if (json) {
    fmt::print("{}\n", plan.Json().dump(2));
  } else {
    fmt::print("{}", plan.Text());
  }
  return 0;
}

}  // namespace

Subcommand PlanCommand() {
  return {
      .name = "plan",
      .operands = "[JOB]",
      .summary = "searches layouts of a network on a cluster: fastest, and the Pareto front",
      .details =
          "Every combination of the sizes below that divides the GPUs and the batch is laid out.\n"
          "Left out is only what does not fit the memory, and what by a lower bound of its step\n"
          "time can neither be among the fastest nor on the front; all else is simulated. Under\n"
          "mpirun or srun the work is shared out; the result is the same.\n\n"
          "Example: pipelag plan --model Llama-3.1-70B --machine dgx-h100 --nodes 64\n"
          "         --sequence 8192 --batch 1024 --rank-of tensor=8,ranks=4,schedule=1f1b",
      .most_operands = 1,
      .reads_job = true,
      .flags = Concatenate(
          {PlanFixedFlags(),
           PlanSpaceFlags(),
           {{"top", "COUNT", "so many of the fastest, and of the front, are shown (default: 10)"},
            {"rank-of", "NAME=VALUE[,...]",
             "shows the place of the best layout with these values, as tensor=8,ranks=16"}},
           SharedWorkFlags("layouts"),
           {FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
