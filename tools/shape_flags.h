// The flags that say which network, and how a micro-batch of it is laid over the devices of a
// stage. Must not know what is done with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/architecture/transformer.h"
#include "models/architecture/work.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --layers … --vocabulary: a GPT by figures.
std::vector<Flag> GptFlags();

/// The GPT of GptFlags and --sequence. Throws Error naming the flag that is missing or wrong.
Transformer GptOf(const Arguments& arguments);

/// --sequence … --precision.
std::vector<Flag> ShardingFlags();

/// Without --sequence as long as the model is made for, at most 4096 tokens. Throws Error naming
/// the flag that is out of range, or says something of experts that the model has not.
Sharding ShardingOf(const Arguments& arguments, const Transformer& model);

/// A line for stderr if sequences are longer than the model is made for; else empty.
std::string LongSequencesNote(const Transformer& model, const Sharding& sharding);

/// "none", "selective", "alternate", "full".
std::string_view RecomputeName(Recompute recompute);

}  // namespace pipelag
