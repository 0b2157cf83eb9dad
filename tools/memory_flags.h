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

/// Whether one of the flags says how large anything is, besides the device.
bool GivesSizes(const Arguments& arguments);

/// Nothing if none of the flags was given; what was not given is zero, gradients are as large as
/// the weights. A message is as large as --activation-bytes says.
std::optional<MemorySizes> MemorySizesOf(const Arguments& arguments, int stages);

}  // namespace pipelag
