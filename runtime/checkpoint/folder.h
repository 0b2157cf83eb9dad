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

/// Removes the oldest complete ones until `keep` are left.
void KeepLast(const std::filesystem::path& folder, int64_t keep);

}  // namespace pipelag
