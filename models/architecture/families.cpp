#include "models/architecture/families.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/architecture/gpt_families.h"

namespace pipelag {
namespace {

constexpr const char* kHidden = "hidden_size";
constexpr const char* kLayers = "num_hidden_layers";
constexpr const char* kHeads = "num_attention_heads";
constexpr const char* kKeyValueHeads = "num_key_value_heads";

/// What a family takes for keys that are not there.
struct Defaults {
  bool tied = false;
  int64_t head_dim = 0;    ///< 0: the hidden size divided by the heads
  int64_t vocabulary = 0;  ///< 0, and below: the config must say it
  int64_t heads = 0;
  int64_t key_value_heads = 0;  ///< 0: as many as heads
};

int64_t CountOr(const ConfigKeys& keys, const char* name, int64_t otherwise) {
  return otherwise > 0 ? keys.CountOr({name}, otherwise) : keys.Count({name});
}

/// What most decoders since LLaMA have in common: RMSNorm, rotary positions.
Transformer Decoder(const ConfigKeys& keys, const Defaults& defaults) {
  Transformer model;
  model.hidden = keys.Count({kHidden});
  model.vocabulary = CountOr(keys, "vocab_size", defaults.vocabulary);
  model.context = keys.CountOr({"max_position_embeddings"}, 0);
  model.tied = keys.FlagOr("tie_word_embeddings", defaults.tied);
  model.attention_dropout = keys.DecimalOr("attention_dropout", 0) > 0;
  return model;
}

/// Grouped-query attention.
Block Attention(const ConfigKeys& keys, int64_t hidden, const Defaults& defaults) {
  Block block;
  block.heads = CountOr(keys, kHeads, defaults.heads);
  block.key_value_heads = keys.CountOr(
      {kKeyValueHeads}, defaults.key_value_heads > 0 ? defaults.key_value_heads : block.heads);
  keys.CheckDivides(block.key_value_heads, kKeyValueHeads, block.heads, "/num_attention_heads");
  block.head_dim = keys.CountOr({"head_dim"}, defaults.head_dim);
  if (block.head_dim == 0) {
    keys.CheckDivides(block.heads, kHeads, hidden, "/hidden_size");
    block.head_dim = hidden / block.heads;
  }
  block.qkv_bias = block.output_bias = keys.FlagOr("attention_bias", false);
  return block;
}

Block GatedBlock(const ConfigKeys& keys, int64_t hidden, const Defaults& defaults = {}) {
  Block block = Attention(keys, hidden, defaults);
  block.ffn = keys.Count({"intermediate_size"});
  block.gated_mlp = true;
  block.mlp_bias = keys.FlagOr("mlp_bias", false);
  return block;
}

void Repeat(const ConfigKeys& keys, const Block& block, Transformer& model) {
  model.blocks.assign(static_cast<size_t>(keys.Count({kLayers})), block);
}

/// Blocks by "layer_types" if it is there, else by `slides`, see `window` tokens only.
void Slide(const ConfigKeys& keys, int64_t window, bool (*slides)(int64_t layer, int64_t pattern),
           int64_t pattern, Transformer& model) {
  const std::vector<std::string> types = keys.Texts("layer_types");
  if (!types.empty() && types.size() != model.blocks.size()) {
    keys.Fail("layer_types", fmt::format("has {} entries, but there are {} layers", types.size(),
                                         model.blocks.size()));
  }
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const bool sliding =
        types.empty() ? slides(static_cast<int64_t>(i), pattern) : types[i] == "sliding_attention";
    if (sliding) model.blocks[i].window = window;
  }
}

bool EveryOther(int64_t layer, int64_t) { return layer % 2 == 0; }
bool AllButEvery(int64_t layer, int64_t pattern) { return (layer + 1) % pattern != 0; }
bool FromOn(int64_t layer, int64_t first) { return layer >= first; }
bool Always(int64_t, int64_t) { return true; }

Transformer ReadLlama(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {});
  Repeat(keys, GatedBlock(keys, model.hidden), model);
  return model;
}

Transformer ReadSmolLm3(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {.tied = true});
  Repeat(keys, GatedBlock(keys, model.hidden), model);
  return model;
}

Transformer ReadMistral(const ConfigKeys& keys) {
  Transformer model = ReadLlama(keys);
  Slide(keys, keys.NumberOr({"sliding_window"}, 0), Always, 0, model);
  return model;
}

void CheckActive(const ConfigKeys& keys, const Experts& experts) {
  if (experts.active > experts.routed) {
    keys.Fail("num_experts_per_tok", fmt::format("{} experts per token are more than there are: {}",
                                                 experts.active, experts.routed));
  }
}

Transformer ReadMixtral(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {});
  Block block = GatedBlock(keys, model.hidden);
  block.experts.routed = keys.Count({"num_local_experts"});
  block.experts.active = keys.CountOr({"num_experts_per_tok"}, 2);
  block.experts.ffn = block.ffn;
  block.ffn = 0;
  CheckActive(keys, block.experts);
  Repeat(keys, block, model);
  Slide(keys, keys.NumberOr({"sliding_window"}, 0), Always, 0, model);
  return model;
}

void SlideQwen(const ConfigKeys& keys, Transformer& model) {
  const int64_t window = keys.NumberOr({"sliding_window"}, 4096);
  const int64_t first = keys.NumberOr({"max_window_layers"}, model.layers());
  if (keys.FlagOr("use_sliding_window", false)) Slide(keys, window, FromOn, first, model);
}

/// Queries, keys and values have biases here, the output has none.
Transformer ReadQwen2(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {});
  Block block = GatedBlock(keys, model.hidden);
  block.qkv_bias = true;
  block.output_bias = false;
  Repeat(keys, block, model);
  SlideQwen(keys, model);
  return model;
}

Transformer ReadQwen3(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {});
  Block block = GatedBlock(keys, model.hidden, {.head_dim = 128});
  block.query_key_norm = true;
  Repeat(keys, block, model);
  SlideQwen(keys, model);
  return model;
}

/// Dense blocks of `model` that the config gives experts instead.
void AddQwenExperts(const ConfigKeys& keys, const Experts& experts, Transformer& model) {
  const int64_t step = keys.CountOr({"decoder_sparse_step"}, 1);
  const std::vector<int64_t> dense = keys.Numbers("mlp_only_layers");
  CheckActive(keys, experts);
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const bool listed = std::find(dense.begin(), dense.end(), layer) != dense.end();
    if (listed || (layer + 1) % step != 0) continue;
    model.blocks[i].experts = experts;
    model.blocks[i].ffn = 0;
  }
}

Experts QwenExperts(const ConfigKeys& keys) {
  Experts experts;
  experts.routed = keys.Count({"num_experts"});
  experts.active = keys.Count({"num_experts_per_tok"});
  experts.ffn = keys.Count({"moe_intermediate_size"});
  return experts;
}

Transformer ReadQwen2Moe(const ConfigKeys& keys) {
  Transformer model = ReadQwen2(keys);
  Experts experts = QwenExperts(keys);
  experts.shared_ffn = keys.NumberOr({"shared_expert_intermediate_size"}, 0);
  experts.shared_gate = experts.shared_ffn > 0;
  AddQwenExperts(keys, experts, model);
  return model;
}

Transformer ReadQwen3Moe(const ConfigKeys& keys) {
  Transformer model = ReadQwen3(keys);
  AddQwenExperts(keys, QwenExperts(keys), model);
  return model;
}

LatentAttention ReadLatent(const ConfigKeys& keys) {
  LatentAttention latent;
  latent.query_rank = keys.NumberOr({"q_lora_rank"}, 0);
  latent.key_value_rank = keys.Count({"kv_lora_rank"});
  latent.rotary_dim = keys.Count({"qk_rope_head_dim"});
  latent.plain_dim = keys.Count({"qk_nope_head_dim"});
  latent.value_dim = keys.Count({"v_head_dim"});
  return latent;
}

Transformer ReadDeepSeek(const ConfigKeys& keys, bool router_bias) {
  Transformer model = Decoder(keys, {});
  Block dense;
  dense.heads = dense.key_value_heads = keys.Count({kHeads});
  dense.latent = ReadLatent(keys);
  dense.head_dim = dense.latent.plain_dim + dense.latent.rotary_dim;
  dense.qkv_bias = dense.output_bias = keys.FlagOr("attention_bias", false);
  dense.ffn = keys.Count({"intermediate_size"});
  dense.gated_mlp = true;
  Repeat(keys, dense, model);

  Experts experts;
  experts.routed = keys.Count({"n_routed_experts", "num_routed_experts"});
  experts.active = keys.Count({"num_experts_per_tok"});
  experts.ffn = keys.Count({"moe_intermediate_size"});
  experts.shared_ffn = experts.ffn * keys.NumberOr({"n_shared_experts", "num_shared_experts"}, 0);
  experts.router_bias = router_bias;
  CheckActive(keys, experts);
  const int64_t first = keys.NumberOr({"first_k_dense_replace"}, 0);
  const int64_t every = keys.CountOr({"moe_layer_freq"}, 1);
  for (int64_t layer = first; layer < model.layers(); ++layer) {
    if (layer % every != 0) continue;
    Block& block = model.blocks[static_cast<size_t>(layer)];
    block.experts = experts;
    block.ffn = 0;
  }
  model.prediction_layers = static_cast<int>(keys.NumberOr({"num_nextn_predict_layers"}, 0));
  return model;
}

/// Its router's choice is corrected by a bias that the optimizer does not train.
Transformer ReadDeepSeekV3(const ConfigKeys& keys) { return ReadDeepSeek(keys, true); }
Transformer ReadDeepSeekV2(const ConfigKeys& keys) { return ReadDeepSeek(keys, false); }

Transformer ReadGemma(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {.tied = true});
  Repeat(keys, GatedBlock(keys, model.hidden, {.head_dim = 256}), model);
  return model;
}

Transformer ReadGemma2(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {.tied = true});
  Block block = GatedBlock(keys, model.hidden, {.head_dim = 256});
  block.norms = 4;
  Repeat(keys, block, model);
  Slide(keys, keys.NumberOr({"sliding_window"}, 4096), EveryOther, 0, model);
  return model;
}

Transformer ReadGemma3(const ConfigKeys& keys) {
  // Published files leave out what is as in the smallest of them.
  constexpr Defaults kDefaults = {
      .tied = true, .head_dim = 256, .vocabulary = 262208, .heads = 8, .key_value_heads = 4};
  Transformer model = Decoder(keys, kDefaults);
  Block block = GatedBlock(keys, model.hidden, kDefaults);
  block.norms = 4;
  block.query_key_norm = true;
  Repeat(keys, block, model);
  Slide(keys, keys.NumberOr({"sliding_window"}, 4096), AllButEvery,
        keys.CountOr({"sliding_window_pattern", "_sliding_window_pattern"}, 6), model);
  return model;
}

Transformer ReadGptOss(const ConfigKeys& keys) {
  Transformer model = Decoder(keys, {});
  Block block = Attention(keys, model.hidden, {.head_dim = 64});
  block.qkv_bias = block.output_bias = keys.FlagOr("attention_bias", true);
  block.sinks = true;
  block.gated_mlp = true;
  block.experts.routed = keys.Count({"num_local_experts", "num_experts"});
  block.experts.active = keys.Count({"num_experts_per_tok", "experts_per_token"});
  block.experts.ffn = keys.Count({"intermediate_size"});
  block.experts.router_bias = block.experts.bias = true;
  CheckActive(keys, block.experts);
  Repeat(keys, block, model);
  Slide(keys, keys.NumberOr({"sliding_window"}, 128), EveryOther, 0, model);
  return model;
}

/// Its LayerNorm has nothing to learn.
Transformer ReadOlmo(const ConfigKeys& keys) {
  Transformer model = ReadLlama(keys);
  model.norm = NormKind::kBare;
  return model;
}

Transformer ReadOlmo2(const ConfigKeys& keys) {
  Transformer model = ReadLlama(keys);
  for (Block& block : model.blocks) block.wide_query_key_norm = true;
  return model;
}

constexpr Family kFamilies[] = {
    {"bloom", ReadBloom},
    {"deepseek_v2", ReadDeepSeekV2},
    {"deepseek_v3", ReadDeepSeekV3},
    {"falcon", ReadFalcon},
    {"gemma", ReadGemma},
    {"gemma2", ReadGemma2},
    {"gemma3_text", ReadGemma3},
    {"gpt2", ReadGpt2},
    {"gpt_neox", ReadGptNeoX},
    {"gpt_oss", ReadGptOss},
    {"kimi_k2", ReadDeepSeekV3},
    {"llama", ReadLlama},
    {"mistral", ReadMistral},
    {"mixtral", ReadMixtral},
    {"olmo", ReadOlmo},
    {"olmo2", ReadOlmo2},
    {"opt", ReadOpt},
    {"qwen2", ReadQwen2},
    {"qwen2_moe", ReadQwen2Moe},
    {"qwen3", ReadQwen3},
    {"qwen3_moe", ReadQwen3Moe},
    {"smollm3", ReadSmolLm3},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

}  // namespace pipelag
