#include "runtime/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/error.h"
#include "models/file.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/tensor_names.h"
#include "runtime/training.h"

namespace pipelag {
namespace {

constexpr int kFormatVersion = 1;

/// The tensors of one stage at one step.
class StageFile {
 public:
  StageFile(int stage, int64_t run_step, const StageLayout& layout)
      : stage_(stage), run_step_(run_step), layout_(layout) {}

  void AddWeights(const std::string& prefix, const float* weights) {
    for (const StageTensor& place : layout_.tensors()) {
      if (place.copy) continue;
      const float* values = weights + place.offset;
      CheckFinite(prefix + place.name, values, place.elements());
      tensors_.push_back({.name = prefix + HuggingFaceName(place),
                          .type = "F32",
                          .shape = FileShape(place),
                          .values = values,
                          .transposed = IsTransposed(place)});
    }
  }

  void AddState(Optimizer& optimizer) {
    for (const StatePart& part : optimizer.State()) {
      const StageTensor& place = layout_.tensors()[static_cast<size_t>(part.tensor)];
      if (place.copy) continue;
      const std::string name = fmt::format("optimizer.{}.{}", part.name, HuggingFaceName(place));
      if (!part.doubles.empty()) {
        const auto size = static_cast<int64_t>(part.doubles.size());
        CheckFinite(name, part.doubles.data(), size);
        tensors_.push_back(
            {.name = name, .type = "F64", .shape = {size}, .values = part.doubles.data()});
        continue;
      }
      const auto size = static_cast<int64_t>(part.floats.size());
      CheckFinite(name, part.floats.data(), size);
      tensors_.push_back(
          {.name = name,
           .type = "F32",
           .shape = size == place.elements() ? OwnShape(place) : std::vector<int64_t>{size},
           .values = part.floats.data()});
    }
  }

  const std::vector<OutgoingTensor>& tensors() const { return tensors_; }

 private:
  template <class Real>
  void CheckFinite(const std::string& name, const Real* values, int64_t count) const {
    const auto finite = [](Real value) { return std::isfinite(value); };
    if (std::all_of(values, values + count, finite)) return;
    throw Diverged(run_step_, stage_, name);
  }

  int stage_;
  int64_t run_step_;
  const StageLayout& layout_;
  std::vector<OutgoingTensor> tensors_;
};

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointSettings settings, CheckpointFacts facts,
                                   std::vector<int> delays, int64_t first, int64_t last)
    : settings_(std::move(settings)),
      facts_(std::move(facts)),
      delays_(std::move(delays)),
      first_(first),
      last_(last),
      kept_(delays_.size()),
      reported_(first) {
  CHECK(first_ < last_);
}

/// The first checkpoint at a later step.
int64_t CheckpointWriter::NextAfter(int64_t version) const {
  if (settings_.every == 0) return last_;
  return std::min(last_, (version / settings_.every + 1) * settings_.every);
}

/// Whether a later checkpoint holds the version beside its own.
bool CheckpointWriter::Keeps(int stage, int64_t version) const {
  const int64_t oldest = NextAfter(version) - delays_[static_cast<size_t>(stage)];
  return version < last_ && oldest <= version;
}

bool CheckpointWriter::Wants(int stage, int64_t version) const {
  return version == NextAfter(version - 1) || Keeps(stage, version);
}

void CheckpointWriter::Keep(int stage, int64_t version, int64_t elements, const float* weights) {
  const auto s = static_cast<size_t>(stage);
  if (Keeps(stage, version)) kept_[s][version].assign(weights, weights + elements);
  const int64_t oldest = NextAfter(version) - delays_[s];
  std::erase_if(kept_[s], [&](const auto& entry) { return entry.first < oldest; });
}

void CheckpointWriter::Begin(int stage, int64_t version, const StageLayout& layout,
                             const float* weights) {
  Keep(stage, version, layout.size(), weights);
}

void CheckpointWriter::Updated(int stage, int64_t version, Optimizer& optimizer,
                               const float* weights) {
  if (version == NextAfter(version - 1)) WriteStage(stage, version, optimizer, weights);
  Keep(stage, version, optimizer.layout().size(), weights);
}

std::string CheckpointWriter::FileName(int stage, const char* ending) const {
  return fmt::format("stage-{:04}-of-{:04}.{}", stage + 1, delays_.size(), ending);
}

void CheckpointWriter::WriteStage(int stage, int64_t step, Optimizer& optimizer,
                                  const float* weights) {
  const auto s = static_cast<size_t>(stage);
  StageFile file(stage, step - first_ - 1, optimizer.layout());
  const float* own = optimizer.FinalWeights(weights);
  file.AddWeights("", own);
  if (own != weights) file.AddWeights("version.0.", weights);
  for (int64_t age = 1; age <= std::min<int64_t>(delays_[s], step); ++age) {
    file.AddWeights(fmt::format("version.{}.", age), kept_[s].at(step - age).data());
  }
  file.AddState(optimizer);
  const std::filesystem::path folder = settings_.folder / StepFolderName(step);
  std::filesystem::create_directories(folder);
  const std::string name = FileName(stage, "safetensors");
  const WrittenFile written =
      WriteSafetensors(folder / name, file.tensors(), {{"step", fmt::format("{}", step)}});
  const nlohmann::ordered_json part = {
      {"name", name}, {"bytes", written.bytes}, {"sha256", written.sha256}};
  const std::lock_guard lock(finishing_);
  if (s + 1 < delays_.size()) return NoteStage(stage, step, part.dump());
  unreported_[step] = part.dump();
  if (step <= reported_) NoteLastStage(step);
}

void CheckpointWriter::Reported(int64_t step, const std::vector<double>& latest_losses) {
  const std::lock_guard lock(finishing_);
  reported_ = step;
  latest_losses_ = latest_losses;
  NoteLastStage(step);
}

void CheckpointWriter::NoteLastStage(int64_t step) {
  const auto noted = unreported_.extract(step);
  if (!noted) return;
  auto part = nlohmann::ordered_json::parse(noted.mapped());
  if (step == reported_) part["latest_losses"] = latest_losses_;
  NoteStage(static_cast<int>(delays_.size()) - 1, step, part.dump());
}

/// From then on the stage's file counts.
void CheckpointWriter::NoteStage(int stage, int64_t step, const std::string& part) {
  OutputFile note(settings_.folder / StepFolderName(step) / FileName(stage, "part"));
  note.Write(part);
  note.Commit(false);  // what it says goes to the manifest before anything relies on it
  FinishStep(step);
}

/// Writes the manifest if all stages have come and nobody else does.
void CheckpointWriter::FinishStep(int64_t step) {
  const std::filesystem::path folder = settings_.folder / StepFolderName(step);
  for (size_t stage = 0; stage < delays_.size(); ++stage) {
    if (!std::filesystem::exists(folder / FileName(static_cast<int>(stage), "part"))) return;
  }
  const std::filesystem::path mark = folder / "finishing";
  std::FILE* only = std::fopen(mark.c_str(), "wx");
  if (only == nullptr && errno == EEXIST) return;
  if (only == nullptr) {
    throw Error(fmt::format("{}: cannot be created: {}", mark.string(), std::strerror(errno)));
  }
  std::fclose(only);
  WriteManifest(step);
  for (size_t stage = 0; stage < delays_.size(); ++stage) {
    std::filesystem::remove(folder / FileName(static_cast<int>(stage), "part"));
  }
  std::filesystem::remove(mark);
  if (settings_.keep_last > 0) KeepLast(settings_.folder, settings_.keep_last, delay());
}

void CheckpointWriter::WriteManifest(int64_t step) {
  const std::filesystem::path folder = settings_.folder / StepFolderName(step);
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (size_t stage = 0; stage < delays_.size(); ++stage) {
    const std::string part = ReadFile(folder / FileName(static_cast<int>(stage), "part"));
    files.push_back(nlohmann::ordered_json::parse(part));
  }
  const nlohmann::ordered_json latest_losses =
      files.back().value("latest_losses", nlohmann::ordered_json::array());
  files.back().erase("latest_losses");
  const nlohmann::ordered_json manifest = {
      {"format", "pipelag checkpoint"},
      {"version", kFormatVersion},
      {"step", step},
      {"samples", step * facts_.samples_per_step},
      {"written_by",
       {{"schedule", facts_.schedule}, {"ranks", facts_.ranks}, {"replicas", facts_.replicas}}},
      {"run", nlohmann::ordered_json::parse(facts_.facts)},
      {"summation", nlohmann::ordered_json::parse(facts_.summation)},
      {"latest_losses", latest_losses},
      {"files", files}};
  SyncFolder(folder);  // the files' own names, before what promises them
  WriteFile(folder / kManifestName, manifest.dump(2) + '\n');
  SyncFolder(folder);
  SyncFolder(settings_.folder);
}

}  // namespace pipelag
