#include "models/architecture/transformer.h"

#include <algorithm>
#include <numeric>

namespace pipelag {
namespace {

int64_t LatentAttentionParameters(const Transformer& model, const Block& block) {
  const LatentAttention& latent = block.latent;
  const int64_t query_dim = block.heads * (latent.plain_dim + latent.rotary_dim);
  int64_t parameters = 0;
  if (latent.query_rank > 0) {
    parameters += model.hidden * latent.query_rank + latent.query_rank;  // down, its norm
    parameters += latent.query_rank * query_dim;
    if (block.qkv_bias) parameters += latent.query_rank;
  } else {
    parameters += model.hidden * query_dim;
  }
  const int64_t down = latent.key_value_rank + latent.rotary_dim;
  parameters += model.hidden * down + latent.key_value_rank;  // down, its norm
  if (block.qkv_bias) parameters += down;
  parameters += latent.key_value_rank * block.heads * (latent.plain_dim + latent.value_dim);
  return parameters + block.heads * latent.value_dim * model.hidden;
}

int64_t HeadAttentionParameters(const Transformer& model, const Block& block) {
  const int64_t query_dim = block.heads * block.head_dim;
  const int64_t key_dim = block.key_value_heads * block.head_dim;
  int64_t parameters = model.hidden * (2 * query_dim + 2 * key_dim);
  if (block.qkv_bias) parameters += query_dim + 2 * key_dim;
  if (block.query_key_norm) parameters += 2 * block.head_dim;
  if (block.wide_query_key_norm) parameters += query_dim + key_dim;
  return parameters;
}

int64_t AttentionParameters(const Transformer& model, const Block& block) {
  int64_t parameters = block.latent.key_value_rank > 0 ? LatentAttentionParameters(model, block)
                                                       : HeadAttentionParameters(model, block);
  if (block.output_bias) parameters += model.hidden;
  if (block.sinks) parameters += block.heads;
  return parameters;
}

int64_t FeedForwardParameters(const Transformer& model, const Block& block) {
  const Experts& experts = block.experts;
  if (experts.routed == 0) {
    return MlpParameters(model.hidden, block.ffn, block.gated_mlp, block.mlp_bias);
  }
  int64_t parameters = experts.routed * (model.hidden + (experts.router_bias ? 1 : 0));
  parameters += experts.routed * ExpertParameters(model, block);
  if (experts.shared_ffn > 0) {
    parameters += MlpParameters(model.hidden, experts.shared_ffn, block.gated_mlp, false);
    if (experts.shared_gate) parameters += model.hidden;
  }
  return parameters;
}

int64_t BlockParameters(const Transformer& model, const Block& block) {
  return AttentionParameters(model, block) + FeedForwardParameters(model, block) +
         block.norms * NormParameters(model);
}

/// Two norms, the projection that joins the block's input with the next token's embedding, the
/// block, and a norm before the shared head.
int64_t PredictionParameters(const Transformer& model) {
  return 3 * NormParameters(model) + 2 * model.hidden * model.hidden +
         BlockParameters(model, model.blocks.back());
}

}  // namespace

int64_t NormParameters(const Transformer& model) {
  switch (model.norm) {
    case NormKind::kLayer:
      return 2 * model.hidden;
    case NormKind::kRms:
      return model.hidden;
    case NormKind::kBare:
      break;
  }
  return 0;
}

int64_t MlpParameters(int64_t hidden, int64_t inner, bool gated, bool bias) {
  const int64_t into = gated ? 2 * inner : inner;
  return hidden * (into + inner) + (bias ? into + hidden : 0);
}

std::vector<std::vector<int>> EqualBlocks(const Transformer& model) {
  std::vector<std::vector<int>> kinds;
  for (int i = 0; i < model.layers(); ++i) {
    const Block& block = model.blocks[static_cast<size_t>(i)];
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const std::vector<int>& other) {
      return model.blocks[static_cast<size_t>(other[0])] == block;
    });
    if (kind == kinds.end()) {
      kinds.push_back({i});
    } else {
      kind->push_back(i);
    }
  }
  return kinds;
}

int64_t ParameterCount::Total() const {
  return std::accumulate(blocks.begin(), blocks.end(), embedding + head);
}

int64_t ExpertParameters(const Transformer& model, const Block& block) {
  return MlpParameters(model.hidden, block.experts.ffn, block.gated_mlp, block.experts.bias);
}

ParameterCount CountParameters(const Transformer& model) {
  const int64_t embedding_dim = model.table_width();
  ParameterCount count;
  count.embedding = model.vocabulary * embedding_dim;
  if (model.positions == PositionKind::kLearned) {
    count.embedding += model.position_rows * model.hidden;
  }
  if (model.projects()) count.embedding += embedding_dim * model.hidden;
  if (model.embedding_norm) count.embedding += NormParameters(model);

  if (model.final_norm) count.head += NormParameters(model);
  if (model.projects()) count.head += model.hidden * embedding_dim;
  if (!model.tied) count.head += model.vocabulary * embedding_dim;
  if (model.head_bias) count.head += model.vocabulary;

  int64_t idle = 0;
  for (const Block& block : model.blocks) {
    count.blocks.push_back(BlockParameters(model, block));
    idle += (block.experts.routed - block.experts.active) * ExpertParameters(model, block);
  }
  count.active = count.Total() - idle;
  if (model.prediction_layers > 0) {
    count.prediction = model.prediction_layers * PredictionParameters(model);
  }
  return count;
}

}  // namespace pipelag
