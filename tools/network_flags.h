// The flags that say in what a trained network differs from a GPT-2. Must not know what is done
// with it.
#pragma once

#include <vector>

#include "models/network.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --norm, --positions, --mlp, --no-bias, and TiedFlag.
std::vector<Flag> NetworkKindFlags();

/// --tied.
Flag TiedFlag();

/// The same, --ffn and --key-value-heads into `shape`. Throws Error naming the flag.
void TakeNetworkKind(const Arguments& arguments, NetworkShape& shape);

}  // namespace pipelag
