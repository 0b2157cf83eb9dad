#include "traces/study_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {
namespace {

constexpr const char* kForm = "pipelag study run";
constexpr int kVersion = 1;
constexpr const char* kModeKeys[] = {"optimizer", "profile", "correction", "learning_rate", "seed"};

[[noreturn]] void Damaged(const std::filesystem::path& file, const std::string& why) {
  throw Error(fmt::format("{}: is not a run of a study ({}); delete it to train that run again",
                          file.string(), why));
}

nlohmann::json ParseRun(const std::filesystem::path& file) {
  nlohmann::json json = nlohmann::json::parse(ReadFile(file), nullptr, false);
  if (json.is_discarded()) Damaged(file, "it is no JSON");
  if (!json.is_object() || json.value("form", "") != kForm) Damaged(file, "it says no such form");
  if (json.value("version", 0) != kVersion) Damaged(file, "its version is unknown");
  return json;
}

LossCurve CurveOf(const std::filesystem::path& file, const nlohmann::json& json) {
  try {
    const nlohmann::json& parameters = json.at("parameters");
    LossCurve curve;
    curve.mode = {parameters.at("optimizer"), parameters.at("profile"),
                  parameters.at("correction")};
    curve.learning_rate = parameters.at("learning_rate");
    curve.seed = parameters.at("seed");
    curve.tokens_per_step = parameters.at("tokens_per_step");
    curve.diverged = json.at("diverged");
    for (const nlohmann::json& loss : json.at("step_losses")) {
      curve.losses.push_back(loss.is_null() && curve.diverged ? std::nan("") : loss.get<double>());
    }
    if (curve.losses.empty()) Damaged(file, "it has no losses");
    if (!curve.diverged) curve.validation_loss = json.at("validation_loss").get<double>();
    return curve;
  } catch (const nlohmann::json::exception& error) {
    Damaged(file, error.what());
  }
}

}  // namespace

std::string RunFileText(const std::string& parameters, const LossCurve& curve) {
  nlohmann::ordered_json json = {{"form", kForm},
                                 {"version", kVersion},
                                 {"parameters", nlohmann::ordered_json::parse(parameters)},
                                 {"diverged", curve.diverged}};
  if (curve.validation_loss) json["validation_loss"] = *curve.validation_loss;
  json["step_losses"] = curve.losses;
  return json.dump(1) + '\n';
}

LossCurve ReadRunFile(const std::filesystem::path& file, const std::string& parameters) {
  const nlohmann::json json = ParseRun(file);
  LossCurve curve = CurveOf(file, json);
  if (json.at("parameters") != nlohmann::json::parse(parameters)) {
    throw Error(
        fmt::format("{}: holds a run with other parameters than its name says", file.string()));
  }
  return curve;
}

std::vector<LossCurve> ReadCurves(const std::filesystem::path& place) {
  if (!std::filesystem::is_directory(place)) return ParseCurvesCsv(ReadFile(place), place.string());
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(place)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<LossCurve> curves;
  nlohmann::json common;
  for (const std::filesystem::path& file : files) {
    const nlohmann::json json = ParseRun(file);
    curves.push_back(CurveOf(file, json));
    nlohmann::json rest = json.at("parameters");
    for (const char* key : kModeKeys) rest.erase(key);
    if (common.is_null()) common = rest;
    // What only a correction has, or how a profile is laid out, is no other setting.
    for (const char* key : {"correction_strength", "split", "microbatches"}) {
      common.erase(key);
      rest.erase(key);
    }
    if (rest != common) {
      throw Error(
          fmt::format("{}: the runs in this folder are of several settings; give the CSV "
                      "that 'pipelag converge --curves' writes of one",
                      file.string()));
    }
  }
  if (curves.empty()) throw Error(fmt::format("{}: has no runs of a study", place.string()));
  return curves;
}

}  // namespace pipelag
