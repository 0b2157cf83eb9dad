// What one part of a network asks of one device for one micro-batch, divided among the devices of a
// stage: matrix products, attention, passes over memory, messages, bytes kept. Knows no rates.
//
// Tensor and sequence parallelism, and the bytes kept, follow Megatron-LM as Korthikanti et al.
// describe it (arXiv 2205.05198, sections 4 and 5 and table 2) and give their figures for their
// GPT; what they leave out (statistics of norms) is left out. Other shapes are counted tensor by
// tensor in the same way.
#pragma once

#include <cstdint>
#include <vector>

#include "models/architecture/transformer.h"
#include "models/units.h"

namespace pipelag {

/// kSelective: the attention matrix and what it is multiplied with. Flash attention does that
/// anyway, so with it kSelective is kNone. kAlternate: all but the results of attention and of
/// every other product by weights, the first among them (PyTorch's selective checkpointing as
/// torchtitan sets it up). kFull: the block's input alone is kept.
enum class Recompute : uint8_t { kNone, kSelective, kAlternate, kFull };

/// How a micro-batch is laid over the devices of one stage.
struct Sharding {
  int tensor = 1;
  int context = 1;                 ///< the sequence is cut in as many parts
  int expert = 1;                  ///< routed experts are spread over as many devices
  int expert_tensor = 0;           ///< each routed expert is cut in as many parts; 0: as `tensor`.
                                   ///< Less needs sequence parallelism
  bool sequence_parallel = false;  ///< norms and residuals cut along the sequence by `tensor`
  bool flash = true;               ///< attention keeps no sequence × sequence matrix
  bool loss_in_place = false;  ///< cross entropy overwrites the logits, as Megatron's does; else
                               ///< PyTorch's: copies of them in 32 bits
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
  bool weight = true;  ///< k×n is a weight: I and W each repeat the product's FLOPs. Without
                       ///< (scores and values of attention) I has twice the FLOPs of F and W none
  bool reads = true;   ///< the m×k operand comes out of memory: not flash attention's scores
  bool writes = true;  ///< nor do they get there as the m×n result
  double masked = 0;   ///< share of the FLOPs that is not there: what flash attention skips, as
                       ///< a query may not see it, and rows that make m a whole number

  double Flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * count *
           (1 - masked);
  }
};

enum class CollectiveKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kRing };
enum class ShardingGroup : uint8_t { kTensor, kContext, kExpert };

/// `bytes`: of the whole vector that is reduced or gathered, as one device holds it in the end (or
/// held it, to be scattered); of an all-to-all and a ring what one device sends in all.
struct StageCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ShardingGroup group = ShardingGroup::kTensor;
  Bytes bytes = 0;
  double count = 1;
};

/// Of one device.
struct PartWork {
  std::vector<MatrixProduct> products;    ///< of one forward, recomputation not in it
  std::vector<MatrixProduct> recomputed;  ///< done once more before the backward, or within it:
                                          ///< flash attention's backward repeats the scores
  Bytes passes_forward = 0;               ///< read and written beyond the products' operands
  Bytes passes_backward = 0;
  Bytes passes_recomputed = 0;
  std::vector<StageCollective> collectives_forward;
  /// In I. Without the second gathering of a product's input under sequence parallelism, which
  /// Megatron hides behind I's own product (section 4.2.2).
  std::vector<StageCollective> collectives_backward;
  std::vector<StageCollective> collectives_recomputed;
  int kernels_forward = 0;        ///< launched, each with its overhead
  Bytes activation = 0;           ///< kept from F to the backward, under `recompute`
  Bytes recompute_peak = 0;       ///< there beside it while the part's backward runs: what is
                                  ///< computed again, and the gradients on both sides of the
                                  ///< part's widest step
  Bytes held_for_weight = 0;      ///< what W reads, if it runs apart from I: of the products by
                                  ///< weights their inputs and the gradients of their results.
                                  ///< May be more than `activation` if that is recomputed
  int64_t parameters = 0;         ///< on this device
  int64_t expert_parameters = 0;  ///< of those, in routed experts: reduced over fewer replicas
  int64_t tied_parameters = 0;    ///< of those, in the head's copy of the embedding

  double ForwardFlops() const;
  double BackwardInputFlops() const;
  double BackwardWeightFlops() const;
  double RecomputedFlops() const;
};

/// Throws Error if the sharding does not divide what it divides (heads and inner sizes by `tensor`,
/// routed experts by `expert`, tokens by `context`, tokens by tensor under sequence parallelism).
/// Also if it keeps or moves
/// more than 64 TiB. More devices than key and value heads hold copies of these. The vocabulary is
/// rounded up. Experts are taken to be asked for equally often; of what `capacity` leaves room for,
/// padding is computed too.
PartWork BlockWork(const Transformer& model, const Block& block, const Sharding& sharding);
PartWork EmbeddingWork(const Transformer& model, const Sharding& sharding);
/// Final norm, logits and loss. Where the matrix is the embedding, this is a copy of it, unless
/// both parts are on one device. Logits are kept in 32 bits (section 4.3).
PartWork HeadWork(const Transformer& model, const Sharding& sharding);

/// Every part of a network, as if one device had them all.
struct NetworkWork {
  PartWork embedding;
  std::vector<PartWork> blocks;
  PartWork head;

  double ForwardFlops() const;
  double BackwardInputFlops() const;
  double BackwardWeightFlops() const;
  double RecomputedFlops() const;
  Bytes Activation() const;
  /// Tied matrices count once.
  int64_t Parameters() const;
};
/// Throws Error as BlockWork.
NetworkWork WorkOf(const Transformer& model, const Sharding& sharding);

/// kFull: every query with every key of its sequence, the convention of PaLM (arXiv 2204.02311,
/// appendix B) and Megatron (SC21, arXiv 2104.04473, equation 3); where a window limits what it
/// sees, with as many keys as the window holds, since nothing beyond is ever computed. kVisible:
/// only with those that mask and window let it see, which without a window is about half.
enum class AttentionCount : uint8_t { kFull, kVisible };

/// FLOPs that forward and backward of these sequences ask for by the mathematics, over all devices:
/// what model FLOPs utilisation (MFU) divides. Nothing is recomputed, dropped or padded.
double ModelFlops(const Transformer& model, int64_t sequences, int64_t tokens,
                  AttentionCount attention);
/// In sequences of so many.
double ModelFlopsPerToken(const Transformer& model, int64_t tokens, AttentionCount attention);

}  // namespace pipelag
