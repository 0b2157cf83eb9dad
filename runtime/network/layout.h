// Where the named tensors of one stage lie in its one contiguous buffer, and their first values.
// Weights, gradients and optimizer state of a stage all use this layout. Knows neither what the
// tensors are multiplied with nor which rank or thread holds them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/network.h"

namespace pipelag {

enum class TensorRole {
  kMatrix,     ///< weights of a linear layer inside a block
  kEmbedding,  ///< token or position embedding, looked up by row
  kHead,       ///< the output projection
  kVector,     ///< a bias, or the gain or shift of a norm
};

/// Whose words name a tensor, and whose conventions files of it follow.
enum class NameStyle { kGpt2, kLlama };

enum class InitialValue {
  kNormal,    ///< deviation 0.02
  kResidual,  ///< deviation 0.02 / sqrt(2 L): its output is added to the residual stream
  kOne,
  kZero,
};

/// One tensor, row-major. Matrices are stored (outputs, inputs); a vector of n has rows n, cols 1.
struct StageTensor {
  std::string name;  ///< with the layer's number in the whole network
  int rows = 0;
  int cols = 0;
  TensorRole role = TensorRole::kMatrix;
  int global_index = 0;  ///< place among all tensors of the network, whatever the partition
  int64_t offset = 0;    ///< in elements from the start of the stage's buffer
  InitialValue initial = InitialValue::kNormal;
  NameStyle style = NameStyle::kGpt2;
  /// The last stage's copy of a tied token embedding, whose name, role and place among all tensors
  /// it has: no tensor of its own, where tensors are counted, hashed or saved.
  bool copy = false;

  int64_t elements() const { return static_cast<int64_t>(rows) * cols; }
};

/// The tensors of a stage in global order: token and learned position embedding (first stage); per
/// layer first norm, attention (queries, keys, values: packed or one by one; projection), second
/// norm, MLP (SwiGLU's gate, up, down); final norm, head (last stage); every weight before its
/// bias. Names are Llama's (Hugging Face) for a network that IsLlama, else GPT-2's, with q_proj,
/// k_proj, v_proj and gate_proj where GPT-2 has no such tensor. In place of a tied head a last
/// stage that is not the first holds a copy of the token embedding. Offsets are multiples of
/// kAlignment elements; the gaps between tensors hold zeros in every buffer of this layout, and
/// whoever writes such a buffer keeps them zero.
class StageLayout {
 public:
  static constexpr int64_t kAlignment = 16;

  /// Throws Error if the shape is ill-formed. `range` must be a non-empty part of its layers.
  StageLayout(const NetworkShape& shape, LayerRange range);

  const std::vector<StageTensor>& tensors() const { return tensors_; }

  /// Elements of the whole buffer, gaps included.
  int64_t size() const { return size_; }

  /// Elements of a buffer of gradients. The gradient of a tied embedding is (Σ over lookups) + (Σ
  /// over heads), each over all micro-batches, whether two stages take them or one: a stage that is
  /// first and last adds up the second sum apart, behind the others, until JoinTied.
  int64_t gradient_size() const { return size_ + (joins() ? tied()->elements() : 0); }
  /// The embedding that the head is tied to, or its copy; null if this stage holds none.
  const StageTensor* tied() const {
    return tied_ < 0 ? nullptr : &tensors_[static_cast<size_t>(tied_)];
  }
  /// Whether this stage is first and last, and its head tied.
  bool joins() const { return joins_; }

  /// Throws Error naming the tensor if this stage does not hold it.
  const StageTensor& Find(std::string_view name) const;

 private:
  class Builder;

  std::vector<StageTensor> tensors_;
  int64_t size_ = 0;
  int tied_ = -1;
  bool joins_ = false;
};

/// Adds the gradient of a tied head to that of the embedding where one stage holds both; else
/// nothing. Once per batch, when all micro-batches of all copies of the stage are in.
template <class Real>
void JoinTied(const StageLayout& layout, Real* gradients) {
  if (!layout.joins()) return;
  const StageTensor& tied = *layout.tied();
  Real* lookups = gradients + tied.offset;
  const Real* heads = gradients + layout.size();
  for (int64_t i = 0; i < tied.elements(); ++i) lookups[i] += heads[i];
}

/// Tensors of the whole network, copies not counted; global indices run from 0 to this.
int TensorCount(const NetworkShape& shape);

/// Writes all of `weights` (layout.size() elements): normal with deviation 0.02 for matrices,
/// embeddings and head; 0.02 / sqrt(2 L) for the two projections of a block that feed the residual
/// stream; gains of norms 1, shifts and biases 0 (GPT-2). Every element is a function of the seed,
/// the tensor's global index and the element's place in it, hence the same in every partition.
void InitialiseWeights(const StageLayout& layout, const NetworkShape& shape, uint64_t seed,
                       float* weights);

}  // namespace pipelag
