// JSON files read whole: what is wrong with the text is told with the file's name. Knows no
// particular keys.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pipelag {

/// Throws Error naming the file if it cannot be read, is empty, is not valid JSON (and at which
/// byte), gives one key twice, or holds a number too large to be held.
nlohmann::json ReadJson(const std::filesystem::path& file);

/// The same of a text, which errors call `name`.
nlohmann::json ParseJson(std::string_view text, std::string_view name);

/// Throws Error ("<place>/<key>: unknown key; …") at the first key of an object that is not known:
/// it is most likely a slip of the pen.
void CheckKeys(const nlohmann::json& object, const std::vector<std::string_view>& known,
               const std::string& place);

/// A value as JSON, short enough for one sentence.
std::string ShowJson(const nlohmann::json& value);

}  // namespace pipelag
