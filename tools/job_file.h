// Job files: a JSON object whose keys are the names of flags. Must not know what a flag is for.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "tools/arguments.h"

namespace pipelag {

/// Every key with its value; a switch that is false is left out. Throws Error with file and JSON
/// path; for a key that is not in `known` with the nearest that is.
std::map<std::string, Given> ReadJob(const std::filesystem::path& file,
                                     std::span<const std::string> known);

/// The same of an object that stands at `place` ("cases.json: /rows/0/job").
std::map<std::string, Given> JobOf(const nlohmann::json& object, const std::string& place,
                                   std::span<const std::string> known);

}  // namespace pipelag
