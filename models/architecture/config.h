// Transformers read from what people have: the config.json of a model on Hugging Face, a name known
// here, or a few figures. Knows no devices and no work.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/architecture/transformer.h"

namespace pipelag {

/// A name of TransformerPresets (whatever the case of its letters), else the path of a config.json
/// or of a folder that holds one. Keys that say nothing about the shape are passed over; missing
/// ones take the value they have in Hugging Face's transformers, if they have one there. A model of
/// several modalities is read for its "text_config". Throws Error with file, JSON path and one
/// sentence: unknown "model_type" (and the nearest known), a key missing, not a number, out of
/// range, or against another one.
Transformer ReadTransformer(const std::string& name_or_path);

struct TransformerPreset {
  std::string_view name;
  std::string source;  ///< of its figures
};
std::vector<TransformerPreset> TransformerPresets();

/// The values of "model_type" that are understood.
std::vector<std::string_view> KnownArchitectures();

/// The GPT of Megatron-LM (SC21, arXiv 2104.04473): learned positions, LayerNorm, biases, tied
/// head, dropout, two-matrix MLP.
struct GptShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t vocabulary = 51200;
  int64_t sequence = 2048;
  int64_t ffn = 0;              ///< 0: four times `hidden`
  int64_t key_value_heads = 0;  ///< 0: as `heads`
};
/// Throws Error if `heads` does not divide `hidden` or is not divided by `key_value_heads`, or a
/// number is not positive.
Transformer Gpt(const GptShape& shape);

}  // namespace pipelag
