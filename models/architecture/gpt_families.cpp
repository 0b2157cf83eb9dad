#include "models/architecture/gpt_families.h"

namespace pipelag {
namespace {

constexpr const char* kHidden = "hidden_size";
constexpr const char* kLayers = "num_hidden_layers";
constexpr const char* kHeads = "num_attention_heads";

/// Two matrices, LayerNorm, biases, as many heads of keys as of queries.
Block GptBlock(const ConfigKeys& keys, int64_t hidden, int64_t heads, const char* heads_name,
               int64_t ffn) {
  keys.CheckDivides(heads, heads_name, hidden, "the hidden size");
  Block block;
  block.heads = block.key_value_heads = heads;
  block.head_dim = hidden / heads;
  block.ffn = ffn;
  block.qkv_bias = block.output_bias = block.mlp_bias = true;
  return block;
}

}  // namespace

Transformer ReadGpt2(const ConfigKeys& keys) {
  Transformer model;
  model.norm = NormKind::kLayer;
  model.hidden = keys.Count({"n_embd", kHidden});
  model.vocabulary = keys.Count({"vocab_size"});
  model.context = keys.CountOr({"n_positions", "n_ctx", "max_position_embeddings"}, 1024);
  model.positions = PositionKind::kLearned;
  model.position_rows = model.context;
  model.tied = keys.FlagOr("tie_word_embeddings", true);
  model.dropout = keys.DecimalOr("resid_pdrop", 0.1) > 0;
  model.attention_dropout = keys.DecimalOr("attn_pdrop", 0.1) > 0;
  const int64_t ffn = keys.CountOr({"n_inner"}, 4 * model.hidden);
  const Block block = GptBlock(keys, model.hidden, keys.Count({"n_head", kHeads}), "n_head", ffn);
  model.blocks.assign(static_cast<size_t>(keys.Count({"n_layer", kLayers})), block);
  return model;
}

Transformer ReadOpt(const ConfigKeys& keys) {
  constexpr int64_t kRowsBeforeTheFirst = 2;
  Transformer model;
  model.norm = NormKind::kLayer;
  model.hidden = keys.Count({kHidden});
  model.vocabulary = keys.Count({"vocab_size"});
  model.context = keys.CountOr({"max_position_embeddings"}, 2048);
  model.positions = PositionKind::kLearned;
  model.tied = keys.FlagOr("tie_word_embeddings", true);
  model.position_rows = model.context + kRowsBeforeTheFirst;
  model.embedding_dim = keys.NumberOr({"word_embed_proj_dim"}, 0);
  model.final_norm =
      keys.FlagOr("do_layer_norm_before", true) && !keys.FlagOr("_remove_final_layer_norm", false);
  model.dropout = keys.DecimalOr("dropout", 0.1) > 0;
  model.attention_dropout = keys.DecimalOr("attention_dropout", 0) > 0;
  if (!keys.FlagOr("layer_norm_elementwise_affine", true)) model.norm = NormKind::kBare;
  Block block = GptBlock(keys, model.hidden, keys.Count({kHeads}), kHeads, keys.Count({"ffn_dim"}));
  block.qkv_bias = block.output_bias = block.mlp_bias = keys.FlagOr("enable_bias", true);
  model.blocks.assign(static_cast<size_t>(keys.Count({kLayers})), block);
  return model;
}

Transformer ReadBloom(const ConfigKeys& keys) {
  Transformer model;
  model.norm = NormKind::kLayer;
  model.hidden = keys.Count({kHidden, "n_embed"});
  model.vocabulary = keys.Count({"vocab_size"});
  model.context = keys.CountOr({"seq_length"}, 2048);
  model.tied = keys.FlagOr("tie_word_embeddings", true);
  model.embedding_norm = true;
  model.alibi = true;
  model.dropout = keys.DecimalOr("hidden_dropout", 0) > 0;
  model.attention_dropout = keys.DecimalOr("attention_dropout", 0) > 0;
  const int64_t heads = keys.Count({"n_head", kHeads});
  model.blocks.assign(static_cast<size_t>(keys.Count({"n_layer", kLayers})),
                      GptBlock(keys, model.hidden, heads, "n_head", 4 * model.hidden));
  return model;
}

Transformer ReadFalcon(const ConfigKeys& keys) {
  Transformer model;
  model.norm = NormKind::kLayer;
  model.hidden = keys.Count({kHidden, "n_embed"});
  model.vocabulary = keys.Count({"vocab_size"});
  model.context = keys.CountOr({"max_position_embeddings"}, 2048);
  model.tied = keys.FlagOr("tie_word_embeddings", true);
  model.alibi = keys.FlagOr("alibi", false);
  model.dropout = keys.DecimalOr("hidden_dropout", 0) > 0;
  model.attention_dropout = keys.DecimalOr("attention_dropout", 0) > 0;
  const int64_t heads = keys.Count({kHeads, "n_head"});
  Block block = GptBlock(keys, model.hidden, heads, kHeads,
                         keys.CountOr({"ffn_hidden_size"}, 4 * model.hidden));
  block.qkv_bias = block.output_bias = block.mlp_bias = keys.FlagOr("bias", false);
  const bool newer = keys.FlagOr("new_decoder_architecture", false);
  const int64_t grouped = keys.CountOr({"num_kv_heads", "n_head_kv"}, heads);
  const bool single = keys.FlagOr("multi_query", true) && !newer;
  block.key_value_heads = single ? 1 : newer ? grouped : heads;
  keys.CheckDivides(block.key_value_heads, "num_kv_heads", heads, "/num_attention_heads");
  block.parallel = keys.FlagOr("parallel_attn", true) || newer;
  const int64_t norms = keys.CountOr({"num_ln_in_parallel_attn"}, newer ? 2 : 1);
  block.norms = block.parallel ? static_cast<int>(norms) : 2;
  model.blocks.assign(static_cast<size_t>(keys.Count({kLayers, "n_layer"})), block);
  return model;
}

Transformer ReadGptNeoX(const ConfigKeys& keys) {
  Transformer model;
  model.norm = NormKind::kLayer;
  model.hidden = keys.Count({kHidden});
  model.vocabulary = keys.Count({"vocab_size"});
  model.context = keys.CountOr({"max_position_embeddings"}, 2048);
  model.tied = keys.FlagOr("tie_word_embeddings", false);
  model.attention_dropout = keys.DecimalOr("attention_dropout", 0) > 0;
  model.dropout = keys.DecimalOr("hidden_dropout", 0) > 0;
  Block block =
      GptBlock(keys, model.hidden, keys.Count({kHeads}), kHeads, keys.Count({"intermediate_size"}));
  block.qkv_bias = block.output_bias = keys.FlagOr("attention_bias", true);
  block.parallel = keys.FlagOr("use_parallel_residual", true);
  model.blocks.assign(static_cast<size_t>(keys.Count({kLayers})), block);
  return model;
}

}  // namespace pipelag
