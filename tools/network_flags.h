// The flags that say in what a trained network differs from a GPT-2. Must not know what is done
// with it.
#pragma once

#include <vector>

#include "models/network.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --norm, --positions, --mlp, --no-bias.
std::vector<Flag> NetworkKindFlags();

/// The same, --ffn and --key-value-heads into `shape`. Throws Error naming the flag.
void TakeNetworkKind(const Arguments& arguments, NetworkShape& shape);

}  // namespace pipelag
