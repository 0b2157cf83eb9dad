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
  kVector,     ///< a bias or a LayerNorm gain or shift
};

/// One tensor, row-major. Matrices are stored (outputs, inputs); a vector of n has rows n, cols 1.
struct StageTensor {
  std::string name;  ///< GPT-2 name, with the layer's number in the whole network
  int rows = 0;
  int cols = 0;
  TensorRole role = TensorRole::kMatrix;
  int global_index = 0;  ///< place among all tensors of the network, whatever the partition
  int64_t offset = 0;    ///< in elements from the start of the stage's buffer

  int64_t elements() const { return static_cast<int64_t>(rows) * cols; }
};

/// The tensors of a stage in global order: wte, wpe (first stage); twelve per layer; ln_f, lm_head
/// (last stage). Offsets are multiples of kAlignment elements; the gaps between tensors hold zeros
/// in every buffer of this layout, and whoever writes such a buffer keeps them zero.
class StageLayout {
 public:
  static constexpr int64_t kAlignment = 16;
  static constexpr int kTensorsPerLayer = 12;

  /// Throws Error if the shape is ill-formed. `range` must be a non-empty part of its layers.
  StageLayout(const NetworkShape& shape, LayerRange range);

  const std::vector<StageTensor>& tensors() const { return tensors_; }

  /// Elements of the whole buffer, gaps included.
  int64_t size() const { return size_; }

  /// Throws Error naming the tensor if this stage does not hold it.
  const StageTensor& Find(std::string_view name) const;

 private:
  void Add(std::string name, int rows, int cols, TensorRole role, int global_index);

  std::vector<StageTensor> tensors_;
  int64_t size_ = 0;
};

/// Tensors of the whole network; global indices run from 0 to this.
int TensorCount(const NetworkShape& shape);

/// Writes all of `weights` (layout.size() elements): normal with deviation 0.02 for matrices,
/// embeddings and head; 0.02 / sqrt(2 L) for the two projections of a block that feed the residual
/// stream; LayerNorm gains 1, shifts and biases 0 (GPT-2). Every element is a function of the seed,
/// the tensor's global index and the element's place in it, hence the same in every partition.
void InitialiseWeights(const StageLayout& layout, const NetworkShape& shape, uint64_t seed,
                       float* weights);

}  // namespace pipelag
