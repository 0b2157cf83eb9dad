#include "models/environment.h"

#include <fmt/format.h>

#include <cstdlib>

#include "models/error.h"
#include "models/units.h"

namespace pipelag {

std::optional<int> NumberInEnvironment(const char* variable, int least, int most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  try {
    const int64_t number = ParseInteger(text);
    if (number >= least && number <= most) return static_cast<int>(number);
  } catch (const Error&) {
  }
  throw Error(
      fmt::format("{} is not a whole number from {} to {}: '{}'", variable, least, most, text));
}

}  // namespace pipelag
