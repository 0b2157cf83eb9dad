// The flags of `pipelag plan`.
#include "tools/plan_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/names.h"
#include "models/schedule/generators.h"
#include "sim/estimated_run.h"
#include "tools/flags.h"
#include "tools/shape_flags.h"

namespace pipelag {
namespace {

constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kSelective, Recompute::kAlternate,
                                     Recompute::kFull};
constexpr const char* kVarying[] = {"tensor",     "context",   "expert", "ranks",   "chunks",
                                    "microbatch", "recompute", "zero",   "schedule"};
constexpr const char* kDefaultSchedules[] = {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "2bw"};

bool IsVarying(const std::string& flag) {
  return std::find(std::begin(kVarying), std::end(kVarying), flag) != std::end(kVarying);
}

/// Those of the flags of a simulated network that stay the same over a plan.
std::vector<Flag> NetworkFlags() {
  std::vector<Flag> flags;
  for (Flag& flag : ModelFlags()) {
    if (!IsVarying(flag.name) && flag.name != "data" && flag.name != "nodes" &&
        flag.name != "sequence-parallel") {
      flags.push_back(std::move(flag));
    }
  }
  const std::vector<Flag> shape = {
      {"layers", "COUNT", "of a GPT by figures; of a --model as many of its first blocks"},
      {"hidden", "COUNT", "channels of that GPT"},
      {"heads", "COUNT", "its attention heads"},
      {"vocabulary", "COUNT", "tokens that it knows"},
      {"sequence", "COUNT", "tokens per sequence (default: the model's, at most 4096)"},
      {"optimizer", "NAME", "by whose state and updates (default: adamw)"}};
  return Concatenate({std::move(flags), shape});
}

std::vector<int> PowersOfTwo(int64_t most) {
  std::vector<int> powers;
  for (int power = 1; power <= most; power *= 2) powers.push_back(power);
  return powers;
}

std::vector<int> PositivesOr(const Arguments& arguments, const char* flag,
                             std::vector<int> otherwise) {
  if (!arguments.Has(flag)) return otherwise;
  std::vector<int> values = arguments.SmallNumbers(flag);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 1) throw Error(fmt::format("{}: 0 is less than 1", arguments.PlaceOf(flag)));
    if (std::count(values.begin(), values.end(), values[i]) > 1) {
      throw Error(fmt::format("{}: {} is there twice", arguments.PlaceOf(flag), values[i]));
    }
  }
  return values;
}

void CheckZero(int64_t stage, const std::string& place) {
  if (stage > 3) throw Error(fmt::format("{}: there is no ZeRO stage {}: 0 to 3", place, stage));
}

Recompute RecomputeOf(const std::string& name, const std::string& place) {
  std::vector<std::string_view> names;
  for (const Recompute recompute : kRecomputes) {
    names.push_back(RecomputeName(recompute));
    if (names.back() == name) return recompute;
  }
  throw Error(fmt::format("{}: '{}' is none of {}; the nearest is '{}'", place, name,
                          fmt::join(names, ", "), Nearest(name, names)));
}

std::vector<Recompute> RecomputesOf(const Arguments& arguments, bool flash) {
  if (!arguments.Has("recompute")) {
    // Attention by flash kernels keeps nothing that selective recomputation could save.
    if (flash) return {Recompute::kNone, Recompute::kFull};
    return {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  }
  std::vector<Recompute> values;
  for (const std::string& text : arguments.Texts("recompute")) {
    values.push_back(RecomputeOf(text, arguments.PlaceOf("recompute")));
  }
  return values;
}

void CheckSchedule(const std::string& name, const std::string& place) {
  std::vector<std::string_view> names;
  for (const Generator& generator : Generators()) {
    if ((generator.uses & Generator::kCosts) != 0) {
      if (generator.name == name) {
        throw Error(fmt::format("{}: {} makes its order from times, which is not planned with",
                                place, name));
      }
      continue;
    }
    names.push_back(generator.name);
  }
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw Error(fmt::format("{}: '{}' is not a known schedule; the nearest is '{}'", place, name,
                          Nearest(name, names)));
}

std::vector<std::string> SchedulesOfPlan(const Arguments& arguments) {
  if (!arguments.Has("schedule")) {
    return {std::begin(kDefaultSchedules), std::end(kDefaultSchedules)};
  }
  std::vector<std::string> names = arguments.Texts("schedule");
  for (const std::string& name : names) CheckSchedule(name, arguments.PlaceOf("schedule"));
  return names;
}

/// "1024" sequences, or "4194304tokens".
int64_t BatchOf(const Arguments& arguments, int64_t tokens) {
  constexpr std::string_view kTokens = "tokens";
  const std::string text = arguments.Text("batch");
  const std::string place = arguments.PlaceOf("batch");
  const bool in_tokens = text.ends_with(kTokens);
  int64_t count = 0;
  try {
    count = ParseInteger(in_tokens ? text.substr(0, text.size() - kTokens.size()) : text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}; an example is 1024, or 4194304tokens", place, error.what()));
  }
  if (count < 1) throw Error(fmt::format("{}: '{}' is less than 1", place, text));
  if (!in_tokens) return count;
  if (count % tokens != 0) {
    throw Error(fmt::format("{}: {} tokens are no whole number of sequences of {} tokens", place,
                            count, tokens));
  }
  return count / tokens;
}

std::vector<int> ExpertsOr(const Transformer& model) {
  int64_t routed = 0;
  for (const Block& block : model.blocks) routed = std::max(routed, block.experts.routed);
  std::vector<int> sizes = PowersOfTwo(std::max<int64_t>(1, std::min<int64_t>(routed, 64)));
  std::erase_if(sizes, [&](int size) { return size > 1 && routed % size != 0; });
  return sizes;
}

std::vector<int> ZeroStagesOf(const Arguments& arguments) {
  if (!arguments.Has("zero")) return {1, 3};
  std::vector<int> stages = arguments.SmallNumbers("zero");
  for (const int stage : stages) CheckZero(stage, arguments.PlaceOf("zero"));
  return stages;
}

/// What would say nothing here, and seem to.
void RefuseWithoutUse(const Arguments& arguments, const Transformer& model) {
  for (const char* flag : {"hidden", "heads", "key-value-heads", "ffn", "vocabulary"}) {
    if (arguments.Has("model") && arguments.Has(flag) &&
        arguments.PlaceOf(flag).starts_with("--")) {
      throw Error(fmt::format("--{}: --model has its own", flag));
    }
  }
  for (const char* flag : {"microbatches", "data"}) {
    if (!arguments.Has(flag)) continue;
    throw Error(fmt::format("{}: follows from the GPUs and --batch: leave it out of a plan",
                            arguments.PlaceOf(flag)));
  }
  const bool experts = std::any_of(model.blocks.begin(), model.blocks.end(),
                                   [](const Block& block) { return block.experts.routed > 0; });
  if (experts || !arguments.Has("expert")) return;
  for (const int size : arguments.SmallNumbers("expert")) {
    if (size <= 1) continue;
    throw Error(fmt::format("{}: {} has no routed experts to spread over {}",
                            arguments.PlaceOf("expert"), model.name, size));
  }
}

/// The value of one name of a pattern joins the list.
void Join(const std::string& name, const std::string& value, const std::string& place,
          PlanSpace& space) {
  const auto add = [](auto& list, const auto& one) {
    if (std::find(list.begin(), list.end(), one) == list.end()) list.push_back(one);
  };
  if (name == "schedule") {
    CheckSchedule(value, place);
    return add(space.schedules, value);
  }
  if (name == "recompute") return add(space.recompute, RecomputeOf(value, place));
  int64_t number = -1;
  try {
    number = ParseInteger(value);
  } catch (const Error&) {
  }
  if (number < (name == "zero" ? 0 : 1) || number > 1'000'000) {
    throw Error(fmt::format("{}: '{}' is not a value of {}", place, value, name));
  }
  if (name == "zero") CheckZero(number, place);
  const auto count = static_cast<int>(number);
  if (name == "tensor") add(space.tensor, count);
  if (name == "context") add(space.context, count);
  if (name == "expert") add(space.expert, count);
  if (name == "chunks") add(space.chunks, count);
  if (name == "microbatch") add(space.microbatch, count);
  if (name == "zero") add(space.shard_states, count);
  if (name != "ranks") return;
  if (!space.pipeline.empty()) add(space.pipeline, count);
  space.most_pipeline = std::max(space.most_pipeline, count);
}

}  // namespace

std::vector<Flag> PlanFixedFlags() {
  std::vector<Flag> flags = NetworkFlags();
  flags.push_back({"nodes", "COUNT", "of the machine, all of whose GPUs are used"});
  flags.push_back({"batch", "COUNT|COUNTtokens", "sequences, or tokens, of a step"});
  return flags;
}

std::vector<Flag> PlanSpaceFlags() {
  return {
      {"tensor", "COUNT[,COUNT...]", "default: powers of two up to a node, 16 at most"},
      {"context", "COUNT[,COUNT...]", "parts each sequence is cut in (default: 1)"},
      {"expert", "COUNT[,COUNT...]",
       "copies that experts are spread over (default: powers of two up to 64 that divide them)"},
      {"ranks", "COUNT[,COUNT...]", "pipeline sizes (default: all that divide, up to 64)"},
      {"chunks", "COUNT[,COUNT...]",
       "stages per rank, of the schedules that have several (default: 1,2,4,8)"},
      {"microbatch", "COUNT[,COUNT...]", "sequences per micro-batch (default: 1,2,4,8)"},
      {"recompute", "NAME[,NAME...]",
       "none, selective, alternate, full (default: none,full, with --attention plain selective "
       "too)"},
      {"zero", "STAGE[,STAGE...]", "0, 1, 2, 3 (default: 1,3)"},
      {"schedule", "NAME[,NAME...]", fmt::format("default: {}", fmt::join(kDefaultSchedules, ","))},
      {"memory", "SIZE", "that a layout may need of a GPU (default: all it has)"},
  };
}

PlanTask PlanTaskOf(const Arguments& arguments) {
  for (const char* needed : {"machine", "nodes", "batch"}) arguments.Text(needed);
  PlanTask task;
  std::map<std::string, Given> fixed;
  const std::vector<Flag> flags = PlanFixedFlags();
  for (const auto& [name, given] : arguments.given()) {
    const bool known =
        std::any_of(flags.begin(), flags.end(),
                    [&, &flag_name = name](const Flag& flag) { return flag.name == flag_name; });
    if (!known) continue;
    fixed[name] = given;
    task.fixed.emplace_back(
        name, given.items.empty() ? "" : fmt::format("{}", fmt::join(given.items, ",")));
  }
  task.run = *ModelledRunOf(Arguments(fixed, {}));
  if (!fixed.contains("expert-tensor")) task.run.layout.sharding.expert_tensor = 0;
  RefuseWithoutUse(arguments, task.run.model);
  const Machine& machine = task.run.machine;
  PlanSpace& space = task.space;
  constexpr int64_t kMostGpus = 1'000'000;
  const int64_t gpus = arguments.Count("nodes") * machine.gpus_per_node;
  if (gpus > kMostGpus) {
    throw Error(
        fmt::format("{}: {} GPUs are more than {}", arguments.PlaceOf("nodes"), gpus, kMostGpus));
  }
  space.gpus = static_cast<int>(gpus);
  space.fixed = task.run.layout;
  space.batch = BatchOf(arguments, space.fixed.sharding.tokens);
  space.layers = task.run.model.layers();
  constexpr int kMostTensor = 16;
  space.tensor =
      PositivesOr(arguments, "tensor", PowersOfTwo(std::min(kMostTensor, machine.gpus_per_node)));
  space.context = PositivesOr(arguments, "context", {1});
  space.expert = PositivesOr(arguments, "expert", ExpertsOr(task.run.model));
  space.pipeline = PositivesOr(arguments, "ranks", {});
  space.chunks = PositivesOr(arguments, "chunks", {1, 2, 4, 8});
  space.microbatch = PositivesOr(arguments, "microbatch", {1, 2, 4, 8});
  space.recompute = RecomputesOf(arguments, space.fixed.sharding.flash);
  space.shard_states = ZeroStagesOf(arguments);
  space.schedules = SchedulesOfPlan(arguments);
  task.memory = arguments.Has("memory") ? arguments.Size("memory") : machine.accelerator.memory;
  return task;
}

std::vector<std::pair<std::string, std::string>> VaryingOf(const Candidate& candidate) {
  const RunLayout& layout = candidate.layout;
  const auto number = [](int64_t value) { return fmt::format("{}", value); };
  return {{"schedule", candidate.schedule},
          {"tensor", number(layout.sharding.tensor)},
          {"context", number(layout.sharding.context)},
          {"expert", number(layout.sharding.expert)},
          {"ranks", number(layout.pipeline)},
          {"chunks", number(layout.chunks)},
          {"data", number(layout.data)},
          {"microbatch", number(layout.sharding.sequences)},
          {"microbatches", number(layout.microbatches)},
          {"recompute", std::string(RecomputeName(layout.sharding.recompute))},
          {"zero", number(layout.shard_states)}};
}

std::string CandidateText(const Candidate& candidate) {
  std::vector<std::string> words;
  for (const auto& [name, value] : VaryingOf(candidate)) {
    words.push_back(fmt::format("{}={}", name, value));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string SimulateCommandOf(const PlanTask& task, const Candidate& candidate) {
  std::string command = "pipelag simulate";
  for (const auto& [name, value] : task.fixed) {
    if (name == "batch") continue;
    command += fmt::format(" --{}{}{}", name, value.empty() ? "" : " ", value);
  }
  const auto generator =
      std::find_if(Generators().begin(), Generators().end(),
                   [&](const Generator& known) { return known.name == candidate.schedule; });
  for (const auto& [name, value] : VaryingOf(candidate)) {
    const bool useless =
        name == "chunks" && (value == "1" || (generator->uses & Generator::kChunks) == 0);
    if (!useless) command += fmt::format(" --{} {}", name, value);
  }
  return command + (candidate.layout.sharding.sequence_parallel ? " --sequence-parallel" : "");
}

LayoutPattern PatternOf(const Arguments& arguments, PlanSpace& space) {
  LayoutPattern pattern;
  if (!arguments.Has("rank-of")) return pattern;
  const std::string place = arguments.PlaceOf("rank-of");
  std::vector<std::string_view> names{"pipeline"};
  const std::vector<std::pair<std::string, std::string>> known = VaryingOf({});
  for (const auto& entry : known) names.push_back(entry.first);
  for (const std::string& text : arguments.Texts("rank-of")) {
    const size_t equals = std::min(text.size(), text.find('='));
    std::string name = text.substr(0, equals);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw Error(fmt::format("{}: '{}' is nothing that a layout has; the nearest is '{}'", place,
                              name, Nearest(name, names)));
    }
    if (equals + 1 >= text.size()) {
      throw Error(fmt::format("{}: '{}' is not of the form name=value", place, text));
    }
    if (name == "pipeline") name = "ranks";
    const std::string value = text.substr(equals + 1);
    Join(name, value, place, space);
    pattern.emplace_back(name, value);
  }
  return pattern;
}

bool Matches(const Candidate& candidate, const LayoutPattern& pattern) {
  const auto varying = VaryingOf(candidate);
  return std::all_of(pattern.begin(), pattern.end(), [&](const auto& wanted) {
    // One stands for all that are the same.
    if (wanted.first == "schedule" && candidate.layout.pipeline == 1) return true;
    if (wanted.first == "zero" && !ReducesGradients(candidate.layout)) return true;
    return std::find(varying.begin(), varying.end(), wanted) != varying.end();
  });
}

}  // namespace pipelag
