// Where the tensors of a stage lie by what they are for, not by name. Knows offsets only.
#pragma once

#include <cstdint>
#include <vector>

#include "models/network.h"
#include "runtime/network/attention.h"
#include "runtime/network/feed_forward.h"
#include "runtime/network/layout.h"

namespace pipelag {

/// Offsets of one block's tensors in the stage's buffer; −1: there is no such tensor.
struct BlockTensors {
  int64_t norm1_gain = -1, norm1_shift = -1;
  AttentionTensors attention;
  int64_t projection = -1, projection_bias = -1;
  int64_t norm2_gain = -1, norm2_shift = -1;
  FeedForwardTensors mlp;
};

/// Likewise of a whole stage.
struct StageTensors {
  int64_t token_table = -1, position_table = -1;
  std::vector<BlockTensors> blocks;
  int64_t final_gain = -1, final_shift = -1;
  int64_t head = -1;           ///< of a tied head on the stage of the embedding: the embedding
  int64_t head_gradient = -1;  ///< in a buffer of gradients, see StageLayout::gradient_size
};

/// `layout` is that of `range` in a network of `shape`.
StageTensors FindTensors(const StageLayout& layout, const NetworkShape& shape, LayerRange range);

}  // namespace pipelag
