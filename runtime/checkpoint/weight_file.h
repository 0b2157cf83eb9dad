// Weights alone, of a whole network, in files that other tools read and write: safetensors with
// Hugging Face's names, and llm.c's GPT-2 checkpoint. Knows nothing of a run's other state.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "models/network.h"
#include "runtime/network/digest.h"
#include "runtime/starting_point.h"

namespace pipelag {

/// What llm.c's header says: 256 int32, of them 20240326, version (3: float32), longest sequence,
/// vocabulary, layers, heads, channels, rows of the token embedding (the vocabulary, padded). Then
/// float32, each tensor for all layers: wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw
/// fcb fcprojw fcprojb lnfw lnfb, matrices as (outputs, inputs) as ours are (llm.c, train_gpt2.c).
struct LlmcHeader {
  NetworkShape shape;  ///< its sequence is the longest
  int embedding_rows = 0;
};

/// Empty if the file is none of llm.c's checkpoints. Throws Error naming it if it is one but of
/// another version or size than its header says.
std::optional<LlmcHeader> ReadLlmcHeader(const std::filesystem::path& file);

/// The weights to begin training with, at step 0. In either format a file may know more positions
/// than `shape`, whose first ones are taken, and llm.c's more rows of embedding than tokens. A head
/// that the file does not hold is tied to the token embedding there; that of a network which is not
/// tied begins as a copy, and a tied network takes no file with a head that differs from the
/// embedding. Names may lack "transformer." or "model.". Throws Error naming file and tensor
/// for whatever does not fit.
std::shared_ptr<const StartingPoint> OpenWeights(const std::filesystem::path& file,
                                                 const NetworkShape& shape);

/// Writes all weights, in llm.c's format if the name ends in .bin, else as safetensors with a head
/// that is not tied as "lm_head.weight". llm.c's has no place for a head of its own: throws Error
/// if it differs from the embedding, or the network is no GPT-2. The embedding is padded with zeros
/// to a multiple of 128 rows, as llm.c's own are.
void ExportWeights(const std::filesystem::path& file, const NetworkShape& shape,
                   const std::vector<StageWeights>& stages);

}  // namespace pipelag
