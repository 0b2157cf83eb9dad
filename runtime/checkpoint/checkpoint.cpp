#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/error.h"
#include "models/input_file.h"
#include "models/json_file.h"
#include "runtime/checkpoint/facts.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/tensor_names.h"
#include "runtime/sha256.h"

namespace pipelag {

struct Checkpoint::Manifest {
  explicit Manifest(std::string path) : file(std::move(path)), json(ReadJson(file)) {}

  std::string file;
  nlohmann::json json;

  const nlohmann::json& At(const char* key, nlohmann::json::value_t type) const {
    if (!json.contains(key)) throw Error(fmt::format("{}: /{} is missing", file, key));
    if (json[key].type() != type) {
      throw Error(fmt::format("{}: /{} is not of the kind that it should be", file, key));
    }
    return json[key];
  }
};

namespace {

constexpr int kFormatVersion = 1;

std::string Sha256Of(const std::filesystem::path& file, int64_t expected_bytes) {
  const InputFile opened(file);
  if (opened.size() != expected_bytes) {
    throw Error(fmt::format("{}: is damaged: it has {} bytes, its manifest says {}", file.string(),
                            opened.size(), expected_bytes));
  }
  constexpr int64_t kBlock = 1 << 20;
  std::vector<std::byte> block;
  Sha256Sum sum;
  for (int64_t at = 0; at < opened.size(); at += kBlock) {
    block.resize(static_cast<size_t>(std::min(kBlock, opened.size() - at)));
    opened.Read(at, block);
    sum.Add(block.data(), block.size());
  }
  return sum.Finish();
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& path)
    : folder_(FindCheckpoint(path)),
      manifest_(std::make_unique<Manifest>((folder_ / kManifestName).string())) {
  using Type = nlohmann::json::value_t;
  if (!manifest_->json.is_object() ||
      manifest_->json.value("format", nlohmann::json()) != "pipelag checkpoint") {
    throw Error(fmt::format("{}: is no manifest of a checkpoint", manifest_->file));
  }
  const auto version = manifest_->At("version", Type::number_unsigned).get<int64_t>();
  if (version != kFormatVersion) {
    throw Error(fmt::format("{}: is of version {} of the format; {} is known", manifest_->file,
                            version, kFormatVersion));
  }
  step_ = manifest_->At("step", Type::number_unsigned).get<int64_t>();
  manifest_->At("run", Type::object);
  manifest_->At("summation", Type::array);
  manifest_->At("files", Type::array);
  ReadFiles();
  ReadLosses();
}

Checkpoint::~Checkpoint() = default;

/// Of a checkpoint that has none nothing is known: what a run is judged by begins anew.
void Checkpoint::ReadLosses() {
  if (!manifest_->json.contains("latest_losses")) return;
  const nlohmann::json& losses = manifest_->At("latest_losses", nlohmann::json::value_t::array);
  for (const nlohmann::json& loss : losses) {
    if (!loss.is_number()) {
      throw Error(fmt::format("{}: /latest_losses is not what it should be", manifest_->file));
    }
    latest_losses_.push_back(loss.get<double>());
  }
}

void Checkpoint::ReadFiles() {
  const nlohmann::json& files = manifest_->json["files"];
  for (size_t i = 0; i < files.size(); ++i) {
    const nlohmann::json& entry = files[i];
    const auto refuse = [&](const char* key) {
      throw Error(
          fmt::format("{}: /files/{}/{} is not what it should be", manifest_->file, i, key));
    };
    if (!entry.is_object()) refuse("");
    if (!entry.contains("name") || !entry["name"].is_string()) refuse("name");
    if (!entry.contains("bytes") || !entry["bytes"].is_number_unsigned()) refuse("bytes");
    if (!entry.contains("sha256") || !entry["sha256"].is_string()) refuse("sha256");
    const std::filesystem::path name = entry["name"].get<std::string>();
    if (name.empty() || name != name.filename()) refuse("name");
    const std::filesystem::path file = folder_ / name;
    if (!std::filesystem::exists(file)) {
      throw Error(fmt::format("{}: is missing, but {} names it", file.string(), manifest_->file));
    }
    if (Sha256Of(file, entry["bytes"].get<int64_t>()) != entry["sha256"]) {
      throw Error(
          fmt::format("{}: is damaged: its SHA-256 is not that of its manifest", file.string()));
    }
    files_.push_back(std::make_unique<SafetensorsFile>(file));
    for (const auto& [tensor, where] : files_.back()->tensors()) {
      const auto [first, fresh] = held_.emplace(tensor, files_.back().get());
      if (!fresh) {
        throw Error(fmt::format("{}: tensor {} stands in {} too", file.string(), tensor,
                                first->second->path().string()));
      }
    }
  }
}

void Checkpoint::CheckFacts(const std::string& facts, int replicas) const {
  const auto here = nlohmann::ordered_json::parse(facts);
  const nlohmann::json& there = manifest_->json["run"];
  const std::string differences = DifferencesOf(there, here);
  if (differences.empty()) return;
  const auto before =
      manifest_->json.value(nlohmann::json::json_pointer("/written_by/replicas"), nlohmann::json());
  std::string other_replicas;
  if (before.is_number_integer() && before != replicas &&
      there.value("microbatches", nlohmann::json()) != here["microbatches"]) {
    other_replicas = fmt::format("it had {} replicas, this one has {} (--replicas); ",
                                 before.get<int64_t>(), replicas);
  }
  throw Error(fmt::format("{}: is of a run that differs from this one: {}{}", manifest_->file,
                          other_replicas, differences));
}

bool Checkpoint::AddsLike(const std::string& summation) const {
  return manifest_->json["summation"] == nlohmann::json::parse(summation);
}

const SafetensorsFile& Checkpoint::Holding(const std::string& name) const {
  const auto found = held_.find(name);
  if (found == held_.end()) {
    throw Error(fmt::format("{}: none of its files holds tensor {}", manifest_->file, name));
  }
  return *found->second;
}

void Checkpoint::ReadVersion(const StageLayout& layout, int64_t age, float* weights) const {
  std::fill_n(weights, layout.size(), 0.0f);
  for (const StageTensor& place : layout.tensors()) {
    std::string name = HuggingFaceName(place);
    const std::string aged = fmt::format("version.{}.{}", age, name);
    if (age > 0 || held_.contains(aged)) name = aged;
    Holding(name).Read(name, OwnShape(place), IsTransposed(place), weights + place.offset);
  }
}

void Checkpoint::ReadState(Optimizer& optimizer) const {
  for (const StatePart& part : optimizer.State()) {
    const StageTensor& place = optimizer.tensor(part.tensor);
    const std::string name = fmt::format("optimizer.{}.{}", part.name, HuggingFaceName(place));
    const SafetensorsFile& file = Holding(name);
    if (!part.doubles.empty()) {
      file.Read(name, {static_cast<int64_t>(part.doubles.size())}, part.doubles.data());
      continue;
    }
    const auto size = static_cast<int64_t>(part.floats.size());
    const std::vector<int64_t> shape =
        size == place.elements() ? OwnShape(place) : std::vector<int64_t>{size};
    file.Read(name, shape, false, part.floats.data());
  }
}

}  // namespace pipelag
