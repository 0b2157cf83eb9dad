// Under which names and in which shapes a stage's tensors stand in files that others read: those of
// Hugging Face's GPT-2 or, for a network that IsLlama, Llama. Knows no file format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/network/layout.h"

namespace pipelag {

/// "transformer.h.0.attn.c_attn.weight" or "model.layers.0.self_attn.q_proj.weight"; a head of its
/// own is "lm_head.weight", a tied one stands under the token embedding's name alone.
std::string HuggingFaceName(const StageTensor& tensor);

/// Whether the file has it as (inputs, outputs), the transpose of ours: matrices inside blocks
/// where names are GPT-2's, which keeps them as one-dimensional convolutions.
bool IsTransposed(const StageTensor& tensor);

/// As it is in memory: [rows, cols], or [rows] of a vector.
std::vector<int64_t> OwnShape(const StageTensor& tensor);
/// As it is in the file.
std::vector<int64_t> FileShape(const StageTensor& tensor);

}  // namespace pipelag
