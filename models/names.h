// Names a user may have mistyped. Knows no particular table of names.
#pragma once

#include <span>
#include <string_view>

namespace pipelag {

/// The name among `known` (at least one) with the least edit distance to `name`; of several, the
/// first.
std::string_view Nearest(std::string_view name, std::span<const std::string_view> known);

}  // namespace pipelag
