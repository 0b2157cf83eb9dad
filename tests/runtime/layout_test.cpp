// Where tensors lie, how they start and how they are fingerprinted.
#include "runtime/network/layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "models/error.h"
#include "runtime/network/digest.h"

namespace pipelag {
namespace {

NetworkShape Shape() {
  return {.layers = 3, .hidden = 6, .heads = 2, .sequence = 5, .vocabulary = 7};
}

TEST(StageLayout, ListsTensorsInGlobalOrder) {
  const StageLayout whole(Shape(), {0, 3});
  ASSERT_EQ(static_cast<int>(whole.tensors().size()), TensorCount(Shape()));
  const std::vector<std::string> first = {"wte.weight",
                                          "wpe.weight",
                                          "h.0.ln_1.weight",
                                          "h.0.ln_1.bias",
                                          "h.0.attn.c_attn.weight",
                                          "h.0.attn.c_attn.bias",
                                          "h.0.attn.c_proj.weight",
                                          "h.0.attn.c_proj.bias",
                                          "h.0.ln_2.weight",
                                          "h.0.ln_2.bias",
                                          "h.0.mlp.c_fc.weight",
                                          "h.0.mlp.c_fc.bias",
                                          "h.0.mlp.c_proj.weight",
                                          "h.0.mlp.c_proj.bias",
                                          "h.1.ln_1.weight"};
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(whole.tensors()[i].name, first[i]);
  EXPECT_EQ(whole.tensors()[38].name, "ln_f.weight");
  EXPECT_EQ(whole.tensors().back().name, "lm_head.weight");

  const StageTensor& qkv = whole.Find("h.2.attn.c_attn.weight");
  EXPECT_EQ(qkv.rows, 18);
  EXPECT_EQ(qkv.cols, 6);
  EXPECT_EQ(qkv.role, TensorRole::kMatrix);
  EXPECT_EQ(whole.Find("h.0.mlp.c_proj.weight").cols, 24);
  EXPECT_EQ(whole.Find("wpe.weight").rows, 5);
  EXPECT_EQ(whole.Find("wpe.weight").role, TensorRole::kEmbedding);
  EXPECT_EQ(whole.Find("lm_head.weight").role, TensorRole::kHead);
  EXPECT_EQ(whole.Find("ln_f.bias").role, TensorRole::kVector);
  EXPECT_EQ(whole.Find("ln_f.bias").cols, 1);
  EXPECT_THROW(whole.Find("h.3.ln_1.bias"), Error);
}

TEST(StageLayout, NamesALlamaAsHuggingFaceDoes) {
  NetworkShape shape = Shape();
  shape.norm = NormChoice::kRms;
  shape.positions = PositionChoice::kRotary;
  shape.mlp = MlpChoice::kSwiGlu;
  shape.heads = 3;
  shape.key_value_heads = 1;
  EXPECT_EQ(StageLayout(shape, {0, 3}).tensors()[3].name, "h.0.attn.q_proj.bias");
  shape.bias = false;
  const StageLayout whole(shape, {0, 3});
  ASSERT_EQ(static_cast<int>(whole.tensors().size()), TensorCount(shape));
  const std::vector<std::string> first = {"embed_tokens.weight",
                                          "layers.0.input_layernorm.weight",
                                          "layers.0.self_attn.q_proj.weight",
                                          "layers.0.self_attn.k_proj.weight",
                                          "layers.0.self_attn.v_proj.weight",
                                          "layers.0.self_attn.o_proj.weight",
                                          "layers.0.post_attention_layernorm.weight",
                                          "layers.0.mlp.gate_proj.weight",
                                          "layers.0.mlp.up_proj.weight",
                                          "layers.0.mlp.down_proj.weight",
                                          "layers.1.input_layernorm.weight"};
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(whole.tensors()[i].name, first[i]);
  EXPECT_EQ(whole.tensors()[28].name, "norm.weight");
  EXPECT_EQ(whole.tensors()[29].name, "lm_head.weight");
  EXPECT_EQ(whole.Find("layers.2.self_attn.k_proj.weight").rows, 2);
  EXPECT_EQ(whole.Find("layers.2.mlp.down_proj.weight").cols, 16);  // 8/3 · 6
  EXPECT_EQ(StageLayout(shape, {2, 3}).tensors()[0].global_index, 19);
}

TEST(StageLayout, RefusesShapesThatDoNotFitTogether) {
  NetworkShape shape = Shape();  // heads of 3
  shape.positions = PositionChoice::kRotary;
  EXPECT_THROW(StageLayout(shape, {0, 3}), Error);
  shape.heads = 3;
  StageLayout(shape, {0, 3});
  shape.key_value_heads = 2;
  EXPECT_THROW(StageLayout(shape, {0, 3}), Error);
  shape.key_value_heads = 6;
  EXPECT_THROW(StageLayout(shape, {0, 3}), Error);
}

TEST(StageLayout, AlignsWithoutOverlap) {
  const StageLayout layout(Shape(), {1, 3});
  int64_t end = 0;
  for (const StageTensor& tensor : layout.tensors()) {
    EXPECT_EQ(tensor.offset % StageLayout::kAlignment, 0) << tensor.name;
    EXPECT_GE(tensor.offset, end) << tensor.name;
    EXPECT_LT(tensor.offset - end, StageLayout::kAlignment) << tensor.name;
    end = tensor.offset + tensor.elements();
  }
  EXPECT_GE(layout.size(), end);
  EXPECT_EQ(layout.size() % StageLayout::kAlignment, 0);
}

TEST(StageLayout, NamesAndIndicesDoNotDependOnThePartition) {
  const StageLayout whole(Shape(), {0, 3});
  size_t next = 0;
  for (const LayerRange& range : SplitLayers(3, 3)) {
    const StageLayout stage(Shape(), range);
    for (const StageTensor& tensor : stage.tensors()) {
      EXPECT_EQ(tensor.name, whole.tensors()[next].name);
      EXPECT_EQ(tensor.global_index, static_cast<int>(next));
      ++next;
    }
  }
  EXPECT_EQ(next, whole.tensors().size());
}

std::vector<float> Initial(const StageLayout& layout, const NetworkShape& shape, uint64_t seed) {
  std::vector<float> weights(static_cast<size_t>(layout.size()), 9.0f);
  InitialiseWeights(layout, shape, seed, weights.data());
  return weights;
}

TEST(InitialiseWeights, FollowsGpt2) {
  const NetworkShape shape = {
      .layers = 2, .hidden = 64, .heads = 2, .sequence = 32, .vocabulary = 64};
  const StageLayout layout(shape, {0, 2});
  const std::vector<float> weights = Initial(layout, shape, 3);
  double total = 0;
  for (const StageTensor& tensor : layout.tensors()) {
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const double value = weights[static_cast<size_t>(tensor.offset + i)];
      sum += value;
      squares += value * value;
      total += std::fabs(value);
    }
    const double n = static_cast<double>(tensor.elements());
    if (tensor.role == TensorRole::kVector) {
      const bool gain = tensor.name.find("ln_") != std::string::npos &&
                        tensor.name.find("weight") != std::string::npos;
      EXPECT_EQ(sum, gain ? n : 0) << tensor.name;
      EXPECT_EQ(squares, gain ? n : 0) << tensor.name;
    } else {
      const double deviation =
          tensor.name.find("c_proj") != std::string::npos ? 0.02 / std::sqrt(4.0) : 0.02;
      EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n)) << tensor.name;
      EXPECT_NEAR(std::sqrt(squares / n) / deviation, 1, 5 / std::sqrt(2 * n)) << tensor.name;
    }
  }
  double everything = 0;
  for (const float value : weights) everything += std::fabs(static_cast<double>(value));
  EXPECT_NEAR(everything, total, 1e-9) << "gaps must be zero";
}

TEST(InitialiseWeights, DependsOnTheSeed) {
  const StageLayout layout(Shape(), {0, 3});
  EXPECT_EQ(Initial(layout, Shape(), 1), Initial(layout, Shape(), 1));
  EXPECT_NE(Initial(layout, Shape(), 1), Initial(layout, Shape(), 2));
}

std::string Digest(const NetworkShape& shape, int stages, uint64_t seed) {
  std::vector<StageLayout> layouts;
  std::vector<std::vector<float>> weights;
  for (const LayerRange& range : SplitLayers(shape.layers, stages)) {
    layouts.emplace_back(shape, range);
    weights.push_back(Initial(layouts.back(), shape, seed));
  }
  std::vector<StageWeights> parts;
  for (size_t s = 0; s < layouts.size(); ++s) parts.push_back({&layouts[s], weights[s].data()});
  return WeightsSha256(parts);
}

TEST(WeightsSha256, DoesNotDependOnThePartition) {
  const std::string whole = Digest(Shape(), 1, 4);
  EXPECT_EQ(whole.size(), 64u);
  EXPECT_EQ(Digest(Shape(), 2, 4), whole);
  EXPECT_EQ(Digest(Shape(), 3, 4), whole);
  EXPECT_NE(Digest(Shape(), 1, 5), whole);
}

TEST(WeightsSha256, IsThatOfTheBytesWithoutGaps) {
  const NetworkShape shape = {.layers = 1, .hidden = 1, .heads = 1, .sequence = 1, .vocabulary = 1};
  const StageLayout layout(shape, {0, 1});
  // Gaps hold something that must not be hashed; tensors hold 1, 2, 3, ….
  std::vector<float> weights(static_cast<size_t>(layout.size()), 99.0f);
  float next = 1;
  for (const StageTensor& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      weights[static_cast<size_t>(tensor.offset + i)] = next++;
    }
  }
  EXPECT_EQ(next, 31.0f);
  // Computed independently: struct.pack("<30f", 1, 2, …, 30) through hashlib.sha256.
  EXPECT_EQ(WeightsSha256({{&layout, weights.data()}}),
            "e6e109a1d88dcc93b7840c2fac6e8e644046ee6d0e4d76a326e82d262e8b01ee");
}

TEST(WeightsSha256, RefusesAnIncompleteOrder) {
  const StageLayout last(Shape(), {2, 3});
  const std::vector<float> weights = Initial(last, Shape(), 1);
  EXPECT_THROW(WeightsSha256({{&last, weights.data()}}), InternalError);
}

}  // namespace
}  // namespace pipelag
