// The flags that say which optimizer updates which network on which device, for a simulation. Must
// not know what an update costs.
#pragma once

#include <optional>
#include <vector>

#include "models/schedule/program.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --optimizer … --device-bandwidth.
std::vector<Flag> UpdateFlags();

/// Time of the update per stage of the network, where the flags say enough and --update does not
/// say it itself. Throws Error naming the flag for what does not go together.
std::optional<std::vector<Nanoseconds>> UpdateTimesOf(const Arguments& arguments,
                                                      const Program& program);

}  // namespace pipelag
