// A folder of checkpoints: one folder per step in it, complete once it holds a manifest. Knows
// names, not what the files hold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pipelag {

inline constexpr const char* kManifestName = "manifest.json";

/// "step-00000040".
std::string StepFolderName(int64_t step);

/// Steps of the complete checkpoints in `folder`, ascending; none if there is no such folder.
std::vector<int64_t> CompleteSteps(const std::filesystem::path& folder);

/// The folder of one checkpoint that `path` means: itself if it is one, else the latest complete
/// one in it. Throws Error if there is none, or if a folder of a single step is not complete.
std::filesystem::path FindCheckpoint(const std::filesystem::path& path);

/// Before a run from step `first` on writes checkpoints into `folder`: creates it and removes what
/// an interrupted run left unfinished. Throws Error if there are complete ones of later steps,
/// which this run would replace one by one.
void PrepareFolder(const std::filesystem::path& folder, int64_t first);

/// Removes a checkpoint, its manifest first: half removed it is not complete.
void RemoveStep(const std::filesystem::path& folder, int64_t step);

/// The latest complete checkpoint that later steps, of `done` that went well, have shown to be
/// good: in one of them every stage was at its version or a later one, at `delay` updates'
/// distance. None: −1.
int64_t LastGood(const std::filesystem::path& folder, int64_t done, int64_t delay);

/// Removes the oldest complete ones until `keep` are left, but never the last that is known to be
/// good, nor a later one: the newest may hold what breaks the next batch.
void KeepLast(const std::filesystem::path& folder, int64_t keep, int64_t delay);

}  // namespace pipelag
