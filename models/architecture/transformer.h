// The shape of any decoder that people train, as its config.json says it: what is multiplied with
// what, and how many parameters that has. Knows no devices, no time and no division into stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipelag {

enum class NormKind : uint8_t { kLayer, kRms, kBare };  ///< with bias, without, no parameters
enum class PositionKind : uint8_t { kNone, kLearned };  ///< kNone: rotary, ALiBi: no parameters

/// Keys and values out of a common low-rank vector (DeepSeek-V2, arXiv 2405.04434, section 2.1).
struct LatentAttention {
  int64_t query_rank = 0;  ///< 0: queries are not compressed
  int64_t key_value_rank = 0;
  int64_t rotary_dim = 0;  ///< per head, of queries; the keys' is shared by all heads
  int64_t plain_dim = 0;   ///< per head, of queries and keys, without positions
  int64_t value_dim = 0;   ///< per head
  bool operator==(const LatentAttention&) const = default;
};

struct Experts {
  int64_t routed = 0;
  int64_t active = 0;        ///< of the routed, per token
  int64_t ffn = 0;           ///< inner size of one routed expert
  int64_t shared_ffn = 0;    ///< inner size of what every token passes besides; 0: none
  bool shared_gate = false;  ///< Qwen2-MoE weighs the shared part by a learnt scalar
  bool router_bias = false;
  bool bias = false;  ///< of the experts' own matrices
  bool operator==(const Experts&) const = default;
};

/// One decoder block.
struct Block {
  int64_t heads = 0;
  int64_t key_value_heads = 0;
  int64_t head_dim = 0;
  LatentAttention latent;  ///< in force if key_value_rank > 0
  int64_t window = 0;      ///< tokens a query sees; 0: all before it
  bool qkv_bias = false;
  bool output_bias = false;
  bool query_key_norm = false;       ///< per head, of head_dim numbers each for queries and keys
  bool wide_query_key_norm = false;  ///< over all heads at once
  bool sinks = false;                ///< a learnt number per head (gpt-oss)
  int64_t ffn = 0;                   ///< of the dense MLP; 0 if the block has experts
  bool gated_mlp = false;            ///< three matrices instead of two
  bool mlp_bias = false;
  Experts experts;  ///< in force if routed > 0
  int norms = 2;    ///< of `hidden` numbers; 4 with norms behind both halves, 1 in parallel blocks
  bool parallel = false;  ///< attention and MLP side by side, both added to the residual at once
  bool operator==(const Block&) const = default;
};

struct Transformer {
  std::string name;
  std::string architecture;  ///< the config's "model_type"
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  int64_t context = 0;  ///< longest sequence it is made for
  NormKind norm = NormKind::kRms;
  PositionKind positions = PositionKind::kNone;
  int64_t position_rows = 0;  ///< of the learned table
  int64_t embedding_dim = 0;  ///< 0: as `hidden`; else two projections more (OPT-350m)
  bool tied = false;          ///< the head is the embedding
  bool head_bias = false;
  bool embedding_norm = false;
  bool final_norm = true;
  bool alibi = false;              ///< positions are added to the scores: nothing is rotated
  bool dropout = false;            ///< trained with it behind embedding, attention and MLP
  bool attention_dropout = false;  ///< and on the attention matrix
  int prediction_layers = 0;       ///< more blocks like the last that predict further tokens
                                   ///< (DeepSeek-V3, arXiv 2412.19437, section 2.2); in no total
  std::vector<Block> blocks;

  int layers() const { return static_cast<int>(blocks.size()); }
  /// Whether tokens' vectors are projected on their way into the blocks and out of them.
  bool projects() const { return embedding_dim > 0 && embedding_dim != hidden; }
  /// Numbers per token in the tables of embedding and head.
  int64_t table_width() const { return projects() ? embedding_dim : hidden; }
  bool operator==(const Transformer&) const = default;
};

/// Indices of blocks that are alike, ascending, by the first of each kind.
std::vector<std::vector<int>> EqualBlocks(const Transformer& model);

/// Exact numbers of parameters.
struct ParameterCount {
  int64_t embedding = 0;  ///< tokens, positions, their projection to `hidden` and norm
  std::vector<int64_t> blocks;
  int64_t head = 0;        ///< final norm, projection from `hidden`, and the matrix unless tied
  int64_t active = 0;      ///< of all, those one token passes: routed experts that it is not sent
                           ///< to are left out
  int64_t prediction = 0;  ///< of `prediction_layers`, without the embedding and head they share;
                           ///< not in Total()
  int64_t Total() const;
};
ParameterCount CountParameters(const Transformer& model);

/// Of a norm of what is `hidden` wide.
int64_t NormParameters(const Transformer& model);
/// Of two products with `inner` numbers between them; gated: the first is twice as wide.
int64_t MlpParameters(int64_t hidden, int64_t inner, bool gated, bool bias);
/// Of one routed expert.
int64_t ExpertParameters(const Transformer& model, const Block& block);

}  // namespace pipelag
