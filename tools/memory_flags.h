// The flags that say how large things are in a device's memory. Must not know what is done with
// them.
#pragma once

#include <optional>
#include <vector>

#include "models/memory.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --weight-bytes … --device-memory.
std::vector<Flag> MemoryFlags();

/// Nothing if none of the flags was given and nothing is modelled. Each that is given takes the
/// place of what the model of costs says, --device-memory of the machine's; without `modelled` what
/// was not given is zero, and gradients are as large as the weights. A message is as large as
/// --activation-bytes says. Throws Error naming the flag.
std::optional<MemorySizes> MemorySizesOf(const Arguments& arguments, int stages,
                                         const MemorySizes* modelled = nullptr);

}  // namespace pipelag
