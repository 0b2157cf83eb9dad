#include "runtime/checkpoint/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/units.h"

namespace pipelag {
namespace {

using Json = nlohmann::ordered_json;

/// The decimal number that a float was read from.
double Shown(float value) { return ParseDecimal(fmt::format("{}", value)); }

void AddGiven(const char* key, const std::optional<float>& value, Json& json) {
  if (value) json[key] = Shown(*value);
}

template <class Value>
void AddGiven(const char* key, const std::optional<Value>& value, Json& json) {
  if (value) json[key] = *value;
}

Json OptimizerFacts(const OptimizerOptions& options) {
  Json json = {{"name", options.name}};
  AddGiven("momentum", options.momentum, json);
  AddGiven("beta1", options.beta1, json);
  AddGiven("beta2", options.beta2, json);
  AddGiven("beta3", options.beta3, json);
  AddGiven("epsilon", options.epsilon, json);
  AddGiven("weight_decay", options.weight_decay, json);
  AddGiven("nesterov", options.nesterov, json);
  if (options.muon_scale) {
    json["muon_scale"] = *options.muon_scale == MuonScale::kMoonshot ? "moonshot" : "jordan";
  }
  if (options.muon_aux_learning_rate) {
    json["muon_aux_learning_rate"] = Shown(*options.muon_aux_learning_rate);
  }
  AddGiven("basis_updates", options.basis_updates, json);
  return json;
}

Json CorrectionFacts(const CorrectionOptions& options) {
  Json json = {{"name", options.name}};
  AddGiven("strength", options.strength, json);
  AddGiven("horizon", options.horizon, json);
  if (options.decay_inside) json["decay_inside"] = true;
  if (options.rescale_previous) json["rescale_previous"] = true;
  if (options.repeat_first) json["repeat_first"] = true;
  AddGiven("anneal_updates", options.anneal_updates, json);
  AddGiven("exponent", options.exponent, json);
  return json;
}

Json DelayOf(const SerialStage& stage) {
  const int delay = stage.forward_delay.front();
  const auto other = [&](int late) { return late != delay; };
  if (std::none_of(stage.forward_delay.begin(), stage.forward_delay.end(), other) &&
      std::none_of(stage.backward_delay.begin(), stage.backward_delay.end(), other)) {
    return delay;
  }
  return {{"forward", stage.forward_delay}, {"backward", stage.backward_delay}};
}

/// Lists of lists where copies are added before replicas are, else the lists themselves.
Json OrderOf(const SerialStage& stage, int replicas) {
  const std::vector<std::vector<int>>& lists = stage.backward_order;
  if (lists.size() == 1 && std::is_sorted(lists[0].begin(), lists[0].end())) return "ascending";
  const size_t copies = lists.size() / static_cast<size_t>(replicas);
  if (copies == 1 || replicas == 1) return lists;
  Json of_replicas = Json::array();
  for (size_t list = 0; list < lists.size(); ++list) {
    if (list % copies == 0) of_replicas.push_back(Json::array());
    of_replicas.back().push_back(lists[list]);
  }
  return of_replicas;
}

/// `of` every stage, once for each of its layers.
template <class Of>
Json ByLayer(const TrainingOptions& options, const SerialPlan& plan, Of of) {
  Json layers = Json::array();
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Json one = of(plan.stages[s]);
    for (int layer = options.split[s].first; layer < options.split[s].last; ++layer) {
      layers.push_back(one);
    }
  }
  return layers;
}

template <class Flat>
std::string Shown(const Flat& flat, const std::string& path) {
  return flat.contains(path) ? flat[path].dump() : "absent";
}

}  // namespace

nlohmann::ordered_json NetworkFacts(const NetworkShape& shape) {
  Json json = {{"layers", shape.layers},
               {"hidden", shape.hidden},
               {"heads", shape.heads},
               {"sequence", shape.sequence},
               {"vocabulary", shape.vocabulary}};
  if (shape.norm == NormChoice::kRms) json["norm"] = "rms";
  if (shape.positions == PositionChoice::kRotary) json["positions"] = "rotary";
  if (shape.mlp == MlpChoice::kSwiGlu) json["mlp"] = "swiglu";
  if (shape.inner_size() != 4 * int64_t{shape.hidden}) json["ffn"] = shape.inner_size();
  if (shape.kv_heads() != shape.heads) json["key_value_heads"] = shape.kv_heads();
  if (!shape.bias) json["bias"] = false;
  if (shape.tied) json["tied"] = true;
  return json;
}

nlohmann::ordered_json RunFacts(const TrainingOptions& options, const SerialPlan& plan,
                                const Corpus& corpus) {
  const LearningRateCourse& course = options.learning_rate;
  Json json = {
      {"network", NetworkFacts(options.shape)},
      {"microbatches", plan.microbatches},
      {"microbatch_size", options.microbatch_size},
      {"seed", options.seed},
      {"optimizer", OptimizerFacts(options.optimizer)},
      {"correction", CorrectionFacts(options.correction)},
      {"learning_rate",
       {{"peak", Shown(course.peak)},
        {"warmup_updates", course.warmup_updates},
        {"total_updates", course.total_updates},
        {"final_fraction", course.final_fraction}}},
      {"data", {{"tokens", corpus.train.size()}, {"fingerprint", Fingerprint(corpus.train)}}}};
  AddGiven("clip_norm", options.clip_norm, json);
  if (options.precision == ProductPrecision::kBf16) json["precision"] = "bf16";
  json["delay"] = ByLayer(options, plan, DelayOf);
  return json;
}

nlohmann::ordered_json SummationOf(const TrainingOptions& options, const SerialPlan& plan) {
  return ByLayer(options, plan,
                 [&](const SerialStage& stage) { return OrderOf(stage, plan.replicas); });
}

std::string DifferencesOf(const nlohmann::json& there, const nlohmann::ordered_json& here) {
  constexpr int kMostShown = 4;
  const nlohmann::json flat_there = there.flatten();
  const Json flat_here = here.flatten();
  std::string text;
  int count = 0;
  const auto add = [&](const std::string& path) {
    if (++count > kMostShown) return;
    if (count > 1) text += "; ";
    text += fmt::format("{} is {} there, but {} here", path, Shown(flat_there, path),
                        Shown(flat_here, path));
  };
  for (const auto& [path, value] : flat_here.items()) {
    if (!flat_there.contains(path) || flat_there[path] != nlohmann::json(value)) add(path);
  }
  for (const auto& [path, value] : flat_there.items()) {
    if (!flat_here.contains(path)) add(path);
  }
  if (count > kMostShown) text += fmt::format("; and {} more", count - kMostShown);
  return text;
}

}  // namespace pipelag
