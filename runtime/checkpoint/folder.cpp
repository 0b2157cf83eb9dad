#include "runtime/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "models/error.h"
#include "models/file.h"
#include "models/units.h"

namespace pipelag {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

std::optional<int64_t> StepOfName(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (digits.size() < 8 || digits.size() > 18) return std::nullopt;
  if (!std::all_of(digits.begin(), digits.end(), is_digit)) return std::nullopt;
  return ParseInteger(digits);
}

/// All steps of which there is a folder, and whether it is complete.
std::vector<std::pair<int64_t, bool>> StepsIn(const fs::path& folder) {
  std::vector<std::pair<int64_t, bool>> steps;
  if (!fs::is_directory(folder)) return steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::optional<int64_t> step = StepOfName(entry.path().filename());
    if (!step || !entry.is_directory()) continue;
    steps.emplace_back(*step, fs::exists(entry.path() / kManifestName));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace

std::string StepFolderName(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::vector<int64_t> CompleteSteps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& [step, complete] : StepsIn(folder)) {
    if (complete) steps.push_back(step);
  }
  return steps;
}

fs::path FindCheckpoint(const fs::path& path) {
  if (!fs::is_directory(path)) {
    throw Error(fmt::format("{}: there is no such folder of checkpoints", path.string()));
  }
  if (fs::exists(path / kManifestName)) return path;
  const fs::path named = path.has_filename() ? path : path.parent_path();
  if (StepOfName(named.filename())) {
    throw Error(fmt::format("{}: holds no {}, so this checkpoint was never finished", path.string(),
                            kManifestName));
  }
  const std::vector<int64_t> steps = CompleteSteps(path);
  if (steps.empty()) {
    throw Error(fmt::format("{}: holds no finished checkpoint", path.string()));
  }
  return path / StepFolderName(steps.back());
}

void PrepareFolder(const fs::path& folder, int64_t first) {
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    throw Error(fmt::format("{}: is a file, a folder is needed", folder.string()));
  }
  fs::create_directories(folder);
  CheckWritable(folder / kManifestName);
  const std::vector<int64_t> complete_steps = CompleteSteps(folder);
  if (!complete_steps.empty() && complete_steps.back() > first) {
    throw Error(
        fmt::format("{}: already holds the checkpoint of step {}; go on from there with --resume "
                    "or name another folder",
                    folder.string(), complete_steps.back()));
  }
  for (const auto& [step, complete] : StepsIn(folder)) {
    if (!complete) fs::remove_all(folder / StepFolderName(step));
  }
}

void RemoveStep(const fs::path& folder, int64_t step) {
  const fs::path own = folder / StepFolderName(step);
  fs::remove(own / kManifestName);
  SyncFolder(own);
  fs::remove_all(own);
}

int64_t LastGood(const fs::path& folder, int64_t done, int64_t delay) {
  int64_t good = -1;
  for (const int64_t complete : CompleteSteps(folder)) {
    if (complete + delay < done) good = complete;
  }
  return good;
}

void KeepLast(const fs::path& folder, int64_t keep, int64_t delay) {
  const std::vector<int64_t> steps = CompleteSteps(folder);
  const auto size = static_cast<int64_t>(steps.size());
  const int64_t good = size > 0 ? LastGood(folder, steps.back(), delay) : -1;
  for (int64_t i = 0; i + keep < size; ++i) {
    const int64_t step = steps[static_cast<size_t>(i)];
    if (step < good) RemoveStep(folder, step);
  }
}

}  // namespace pipelag
