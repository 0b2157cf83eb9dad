// Decoders in the succession of GPT-2: LayerNorm, MLPs of two matrices. Knows no files.
#pragma once

#include "models/architecture/config_keys.h"
#include "models/architecture/transformer.h"

namespace pipelag {

Transformer ReadGpt2(const ConfigKeys& keys);
Transformer ReadOpt(const ConfigKeys& keys);
Transformer ReadBloom(const ConfigKeys& keys);
Transformer ReadFalcon(const ConfigKeys& keys);
/// GPT-NeoX and Pythia: the halves side by side, each with its norm.
Transformer ReadGptNeoX(const ConfigKeys& keys);

}  // namespace pipelag
