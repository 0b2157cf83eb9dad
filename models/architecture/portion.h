// Pieces that the work of a part is put together from: what a run of operations asks of one device
// if nothing is recomputed. Knows neither which part they belong to nor recomputation.
#pragma once

#include <initializer_list>
#include <vector>

#include "models/architecture/transformer.h"
#include "models/architecture/work.h"

namespace pipelag {

/// A micro-batch as one device of the stage has it.
struct DeviceTokens {
  int64_t sequences = 0;
  int64_t queries = 0;  ///< of a sequence, on this device
  int64_t keys = 0;     ///< of a sequence, over all devices
  int64_t tokens = 0;   ///< sequences · queries: what products cut by `tensor` see
  int64_t own = 0;      ///< of those, what norms and residuals see
};

/// What a framework that takes nothing together computes by one product.
struct ProductResult {
  MatrixProduct product;
  double bytes = 0;
};

struct Portion {
  std::vector<MatrixProduct> products;
  std::vector<ProductResult> results;   ///< of products by weights, in order
  std::vector<MatrixProduct> repeated;  ///< by the backward itself
  double passes_forward = 0;            ///< bytes
  double passes_backward = 0;
  std::vector<StageCollective> collectives_forward;
  std::vector<StageCollective> collectives_backward;
  int kernels = 0;
  double kept = 0;    ///< bytes
  double held = 0;    ///< bytes that the weights' gradients are made of
  double widest = 0;  ///< bytes of the gradients that the widest step reads and writes
  int64_t parameters = 0;
  int64_t expert_parameters = 0;  ///< in `parameters` too
  int64_t tied_parameters = 0;    ///< likewise

  void Add(const Portion& other);
  /// Reads and writes so many bytes in forward and backward, in one kernel.
  void Pass(double forward_bytes, double backward_bytes);
  /// `product`, whose result consists of parts so wide, each computed by itself if need be.
  void Multiply(const MatrixProduct& product, std::initializer_list<int64_t> widths, double bytes);
  /// Gradients on both sides of a product by weights are there at once, and its input, gathered
  /// again where that was cut along the sequence.
  void Widen(const Sharding& sharding, double input_bytes, double result_bytes, bool gathered);
  /// From where norms work to where products are cut by `tensor`, and back: vectors of `bytes` in
  /// all. Megatron's f and g, or with sequence parallelism its g-bar and its conjugate.
  void Enter(const Sharding& sharding, double bytes);
  void Leave(const Sharding& sharding, double bytes);
};

/// Throws Error if a number is not positive or does not divide.
DeviceTokens TokensOf(const Sharding& sharding);

/// `whole` / `parts`. Throws Error "tensor parallelism of 3 does not divide 32 heads".
int64_t Divided(int64_t whole, int64_t parts, const char* parallelism, const char* what);

/// A norm of what is `hidden` wide.
Portion Norm(const Transformer& model, const Sharding& sharding);

/// From the norm's output to queries, keys and values.
Portion AttentionInputs(const Transformer& model, const Block& block, const Sharding& sharding);
/// Scores, softmax and what they weigh.
Portion AttentionCore(const Transformer& model, const Block& block, const Sharding& sharding);
Portion AttentionOutput(const Transformer& model, const Block& block, const Sharding& sharding);

/// Either feed-forward network, from the norm's output on.
Portion DenseMlp(const Transformer& model, const Block& block, const Sharding& sharding);
Portion ExpertMlp(const Transformer& model, const Block& block, const Sharding& sharding);

}  // namespace pipelag
