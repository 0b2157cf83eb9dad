// The shape of the network to be trained and its division into stages. Knows no tensors, no time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipelag {

enum class NormChoice : uint8_t {
  kLayer,  ///< LayerNorm (Ba, Kiros, Hinton, arXiv 1607.06450)
  kRms,    ///< RMSNorm (Zhang, Sennrich, arXiv 1910.07467): no mean is taken out, nothing is added
};
enum class PositionChoice : uint8_t {
  kLearned,  ///< an embedding per position
  kRotary,   ///< queries and keys are rotated by their position (Su et al., arXiv 2104.09864)
};
enum class MlpChoice : uint8_t {
  kGelu,    ///< down · gelu(up · x), tanh form
  kSwiGlu,  ///< down · (silu(gate · x) ⊙ (up · x)) (Shazeer, arXiv 2002.05202)
};

/// A decoder of blocks, each x + attention(norm(x)), then x + mlp(norm(x)), with a head without
/// bias. By default a GPT-2 with a head of its own: LayerNorm, learned positions, GELU, biases.
struct NetworkShape {
  int layers = 4;
  int hidden = 128;  ///< channels C; a multiple of `heads`
  int heads = 4;
  int sequence = 64;  ///< tokens per sequence T
  int vocabulary = 256;
  NormChoice norm = NormChoice::kLayer;
  PositionChoice positions = PositionChoice::kLearned;
  MlpChoice mlp = MlpChoice::kGelu;
  int ffn = 0;              ///< inner size of the MLP; 0: DefaultInnerSize
  int key_value_heads = 0;  ///< divides `heads`, which share them in turn; 0: as many
  bool bias = true;         ///< of linear layers and of LayerNorm, the head's excepted
  bool tied = false;        ///< the head's matrix is the token embedding

  int64_t inner_size() const;
  int64_t kv_heads() const { return key_value_heads > 0 ? key_value_heads : heads; }
  int64_t head_size() const { return hidden / heads; }
  /// Elements of all keys, or of all values, of one token.
  int64_t kv_size() const { return kv_heads() * head_size(); }
  /// One matrix yields queries, keys and values, as in GPT-2; else each has its own.
  bool packed_attention() const {
    return positions == PositionChoice::kLearned && kv_heads() == heads;
  }
  bool norm_shifts() const { return norm == NormChoice::kLayer && bias; }

  bool operator==(const NetworkShape&) const = default;
};

/// 4 C with GELU; with SwiGLU, whose three matrices are to be as large as GELU's two, 8/3 C rounded
/// up to a multiple of 8.
int64_t DefaultInnerSize(MlpChoice mlp, int64_t hidden);

/// Whether it is what GPT-2's files describe, or Llama's (RMSNorm, rotary positions, SwiGLU, no
/// biases; any inner size and key-value heads).
bool IsGpt2(const NetworkShape& shape);
bool IsLlama(const NetworkShape& shape);

/// In what it is no GPT-2: "RMSNorm, rotary positions"; empty if it is one.
std::string UnlikeGpt2(const NetworkShape& shape);

/// Throws Error with one sentence if a size is not positive, `heads` does not divide `hidden`,
/// `key_value_heads` does not divide `heads`, or rotary positions meet heads of odd size, which do
/// not consist of pairs.
void CheckShape(const NetworkShape& shape);

/// Layers [first, last) of a stage. The first stage also holds the embeddings, the last one the
/// final norm and the head, which where it is tied is a copy of the token embedding unless the
/// stage is the first too.
struct LayerRange {
  int first = 0;
  int last = 0;
  bool operator==(const LayerRange&) const = default;
};

/// Splits `layers` evenly over `stages`; the first (layers mod stages) stages get one more.
/// Throws Error if there are more stages than layers or a number is not positive.
std::vector<LayerRange> SplitLayers(int layers, int stages);

/// By hand: counts[s] layers on stage s, every count positive, adding up to `layers`; else Error.
std::vector<LayerRange> SplitLayers(int layers, const std::vector<int>& counts);

}  // namespace pipelag
