// Where the results and gradients of a stage lie on a device between its passes, and how much room
// they take. Knows sizes only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/architecture/work.h"
#include "models/network.h"

namespace pipelag::cuda {

/// Hands out places in a buffer, aligned as DeviceStage's buffers are.
class BytePlaces {
 public:
  size_t Take(size_t bytes);
  size_t size() const { return next_; }

 private:
  size_t next_ = 0;
};

/// What a block computes on its way. Statistics are floats: of a row, or (log-sums) of each head's
/// row; the others are of the compute type.
enum BlockResult : uint8_t {
  kMean1,
  kDeviation1,
  kNorm1,
  kQkv,  ///< rotated
  kLogSums,
  kAttended,
  kMiddle,  ///< the residual stream after attention
  kMean2,
  kDeviation2,
  kNorm2,
  kHidden,     ///< the MLP's first products
  kActivated,  ///< what its last product takes
  kBlockResults
};

/// Gradients of one block's results, from its input's backward to its weights'.
enum BlockGradient : uint8_t { kOfHidden, kOfNorm2, kOfMiddle, kOfQkv, kOfNorm1, kBlockGradients };

/// What the last stage computes behind its blocks. Of the logits their gradient is kept, in their
/// own place and without the loss's scale.
enum HeadResult : uint8_t { kFinalMean, kFinalDeviation, kFinalNorm, kLogitGradient, kHeadResults };

/// Whether `recompute` drops a result after the forward, to compute it again from the block's input
/// (full) or from products that stay (selective: norms, activation function; attention keeps no
/// matrix to begin with).
bool IsDropped(BlockResult result, Recompute recompute);
bool IsDropped(HeadResult result, Recompute recompute);
/// Whether the gradient of the weights needs a result; that of the input needs the others. Of the
/// head it needs all.
bool WeightsNeed(BlockResult result);

/// Where something lies between forward and backward: in the activation slot, in what BackwardInput
/// keeps, or in scratch, of use within one call.
struct Place {
  enum class In : uint8_t { kSlot, kKept, kScratch } in = In::kSlot;
  size_t offset = 0;
};

/// All results, as the forward and the backward in one have them, or the backward in halves.
struct ResultPlaces {
  std::vector<std::array<Place, kBlockResults>> blocks;
  std::array<Place, kHeadResults> head;
};

/// Offsets of what is of use within one call.
struct ScratchPlaces {
  std::array<size_t, kBlockGradients> block_gradients{};
  std::array<size_t, 2> stream_gradients{};  ///< of blocks in turn
  size_t narrow = 0;                         ///< (rows, C)
  size_t activated = 0;                      ///< SwiGLU's (rows, inner size)
  size_t row_dots = 0;
  size_t norm_sums = 0;
  size_t column_sums = 0;
  size_t embed = 0;     ///< first stage
  size_t log_sums = 0;  ///< last stage, as what follows
  size_t row_losses = 0;
  size_t unread_loss = 0;  ///< of a head computed again
};

struct StagePlaces {
  size_t boundary_bytes = 0;  ///< of a message
  /// Columns of the logits in memory. Tensor cores take whole packs of columns, and 50257 is odd:
  /// the head's products are of as many outputs, whose gradients are zero behind the vocabulary.
  int64_t logit_stride = 0;

  std::vector<Place> streams;  ///< the residual stream before each block, and the head's
  ResultPlaces whole;
  ResultPlaces halves;
  BytePlaces slot;

  /// What BackwardInput keeps besides results: per block the gradient of its output and those
  /// inside.
  std::vector<size_t> kept_outputs;
  std::vector<std::array<size_t, kBlockGradients>> kept_gradients;
  size_t kept_input = 0;       ///< first stage
  size_t kept_final_norm = 0;  ///< last stage
  BytePlaces kept;

  ScratchPlaces scratch_at;
  BytePlaces scratch;
};

/// `element_bytes`: of the compute type.
StagePlaces PlaceStage(const NetworkShape& shape, LayerRange range, int64_t batch,
                       Recompute recompute, size_t element_bytes);

}  // namespace pipelag::cuda
