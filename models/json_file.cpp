#include "models/json_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {

nlohmann::json ReadJson(const std::filesystem::path& file) {
  const std::string text = ReadFile(file);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(fmt::format("{}: not valid JSON at byte {}", file.string(), error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    throw Error(fmt::format("{}: a number in it is too large to be held", file.string()));
  }
}

}  // namespace pipelag
