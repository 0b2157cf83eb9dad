#include "runtime/network/stage_tensors.h"

#include "models/error.h"

namespace pipelag {

StageTensors FindTensors(const StageLayout& layout, const NetworkShape& shape, LayerRange range) {
  StageTensors tensors;
  auto next = layout.tensors().begin();
  const auto take = [&](int64_t& offset) { offset = (next++)->offset; };
  const auto linear = [&](int64_t& weight, int64_t& bias) {
    take(weight);
    if (shape.bias) take(bias);
  };
  const auto norm = [&](int64_t& gain, int64_t& shift) {
    take(gain);
    if (shape.norm_shifts()) take(shift);
  };
  if (range.first == 0) {
    take(tensors.token_table);
    if (shape.positions == PositionChoice::kLearned) take(tensors.position_table);
  }
  for (int layer = range.first; layer < range.last; ++layer) {
    BlockTensors& block = tensors.blocks.emplace_back();
    norm(block.norm1_gain, block.norm1_shift);
    linear(block.attention.query, block.attention.query_bias);
    if (!shape.packed_attention()) {
      linear(block.attention.key, block.attention.key_bias);
      linear(block.attention.value, block.attention.value_bias);
    }
    linear(block.projection, block.projection_bias);
    norm(block.norm2_gain, block.norm2_shift);
    if (shape.mlp == MlpChoice::kSwiGlu) linear(block.mlp.gate, block.mlp.gate_bias);
    linear(block.mlp.up, block.mlp.up_bias);
    linear(block.mlp.down, block.mlp.down_bias);
  }
  if (range.last == shape.layers) {
    norm(tensors.final_gain, tensors.final_shift);
    if (layout.joins()) {
      tensors.head = tensors.token_table;
      tensors.head_gradient = layout.size();
    } else {
      take(tensors.head);
      tensors.head_gradient = tensors.head;
    }
  }
  CHECK(next == layout.tensors().end());
  return tensors;
}

}  // namespace pipelag
