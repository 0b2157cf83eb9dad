// What one part of a network asks of one device for one micro-batch, divided among the devices of a
// stage: matrix products, attention, passes over memory, messages, bytes kept. Knows no rates.
#pragma once

#include <cstdint>
#include <vector>

#include "models/architecture/transformer.h"
#include "models/units.h"

namespace pipelag {

enum class Recompute : uint8_t { kNone, kSelective, kFull };

/// How a micro-batch is laid over the devices of one stage.
struct Sharding {
  int tensor = 1;
  int context = 1;                 ///< the sequence is cut in as many parts
  int expert = 1;                  ///< routed experts are spread over as many devices
  bool sequence_parallel = false;  ///< norms and residuals cut along the sequence by `tensor`
  bool flash = true;               ///< attention keeps no sequence × sequence matrix
  Recompute recompute = Recompute::kNone;
  int64_t sequences = 1;  ///< per micro-batch
  int64_t tokens = 1024;  ///< per sequence
  int bytes_per_number = 2;
  double capacity = 0;  ///< of experts: tokens taken per even share; 0: all, none is dropped
};

/// count products of m×k by k×n on each device.
struct MatrixProduct {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double count = 1;
  bool weight =
      true;  ///< k×n is a weight: I and W each repeat the product's FLOPs. Without (scores
             ///< and values of attention) I has twice the FLOPs of F and W has none

  double Flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * count;
  }
};

enum class CollectiveKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kRing };
enum class CollectiveGroup : uint8_t { kTensor, kContext, kExpert };

/// `bytes`: of the whole vector that is reduced or gathered, as one device holds it in the end (or
/// held it, to be scattered); of an all-to-all and a ring what one device sends in all.
struct StageCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  CollectiveGroup group = CollectiveGroup::kTensor;
  Bytes bytes = 0;
  double count = 1;
};

/// Of one device.
struct PartWork {
  std::vector<MatrixProduct> products;    ///< of one forward, recomputation not in it
  std::vector<MatrixProduct> recomputed;  ///< done once more before the backward
  Bytes passes_forward = 0;               ///< read and written beyond the products' operands
  Bytes passes_backward = 0;
  Bytes passes_recomputed = 0;
  std::vector<StageCollective> collectives_forward;
  std::vector<StageCollective> collectives_backward;  ///< in I
  std::vector<StageCollective> collectives_recomputed;
  int kernels_forward = 0;        ///< launched, each with its overhead
  Bytes activation = 0;           ///< kept from F to the backward, under `recompute`
  Bytes recompute_peak = 0;       ///< there beside it while the part's backward runs
  int64_t parameters = 0;         ///< on this device
  int64_t expert_parameters = 0;  ///< of those, in routed experts: reduced over fewer replicas

  double ForwardFlops() const;
  double BackwardInputFlops() const;
  double BackwardWeightFlops() const;
  double RecomputedFlops() const;
};

/// Throws Error if the sharding does not divide what it divides (heads by `tensor`, routed experts
/// by `expert`, tokens by `context`, tokens by tensor under sequence parallelism).
PartWork BlockWork(const Transformer& model, const Block& block, const Sharding& sharding);
PartWork EmbeddingWork(const Transformer& model, const Sharding& sharding);
/// Final norm, logits and loss.
PartWork HeadWork(const Transformer& model, const Sharding& sharding);

}  // namespace pipelag
