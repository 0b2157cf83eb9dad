// Job files: a JSON object whose keys are the names of flags. Must not know what a flag is for.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "tools/arguments.h"

namespace pipelag {

/// Every key with its value; a switch that is false is left out. Throws Error with file and JSON
/// path; for a key that is not in `known` with the nearest that is.
std::map<std::string, Given> ReadJob(const std::filesystem::path& file,
                                     std::span<const std::string> known);

}  // namespace pipelag
