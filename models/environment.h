// Numbers that whoever starts the process leaves in its environment. Knows no launcher.
#pragma once

#include <optional>

namespace pipelag {

/// The whole number in a variable; empty if there is no such variable. Throws Error naming it if it
/// holds anything else than a number from `least` to `most`.
std::optional<int> NumberInEnvironment(const char* variable, int least, int most);

}  // namespace pipelag
