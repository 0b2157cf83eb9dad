// JSON files read whole: what is wrong with the text is told with the file's name. Knows no keys.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace pipelag {

/// Throws Error naming the file if it cannot be read, is empty, is not valid JSON (and at which
/// byte), gives one key twice, or holds a number too large to be held.
nlohmann::json ReadJson(const std::filesystem::path& file);

/// The same of a text, which errors call `name`.
nlohmann::json ParseJson(std::string_view text, std::string_view name);

}  // namespace pipelag
