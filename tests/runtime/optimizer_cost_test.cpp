// The model's figures for state against what the real optimizers and corrections keep, and its
// names against theirs.
#include "models/optimizer_cost.h"

#include <gtest/gtest.h>

#include "models/error.h"
#include "models/update_time.h"
#include "runtime/correction/correction.h"

namespace pipelag {
namespace {

ParameterShape ShapeOf(const StageTensor& tensor) {
  switch (tensor.role) {
    case TensorRole::kMatrix:
      return {tensor.rows, tensor.cols, ParameterKind::kMatrix};
    case TensorRole::kEmbedding:
    case TensorRole::kHead:
      return {tensor.rows, tensor.cols, ParameterKind::kEmbedding};
    case TensorRole::kVector:
      break;
  }
  return {tensor.rows, tensor.cols, ParameterKind::kVector};
}

TEST(OptimizerCost, StateIsWhatTheRuntimeKeeps) {
  const StageLayout layout({.layers = 2, .hidden = 8, .heads = 2, .sequence = 5, .vocabulary = 13},
                           {0, 2});
  for (const std::string& optimizer : OptimizerNames()) {
    for (const std::string& correction : CorrectionNames()) {
      if (correction == "basis-rotation" && optimizer != "adamw") continue;
      for (const int delay : {0, 1, 3}) {
        OptimizerOptions options;
        options.name = optimizer;
        CorrectionOptions correcting;
        correcting.name = correction;
        const auto real = MakeCorrected(options, correcting, layout, {.updates = delay});
        for (size_t i = 0; i < layout.tensors().size(); ++i) {
          const ParameterShape shape = ShapeOf(layout.tensors()[i]);
          UpdateCost cost = OptimizerCost(optimizer, shape);
          cost += CorrectionCost(correction, shape, delay);
          ASSERT_EQ(cost.state_floats, real->StateFloats(static_cast<int>(i)))
              << optimizer << " " << correction << " " << delay << " " << layout.tensors()[i].name;
          EXPECT_GT(cost.flops, 0);
          EXPECT_GE(cost.floats_moved, 7 * shape.elements());
        }
      }
    }
  }
}

TEST(OptimizerCost, CountsNewtonSchulz) {
  // 0.2 % elementwise; 5 · (4 · 64² · 256 + 2 · 64³) in products.
  const double flops = OptimizerCost("muon", {64, 256, ParameterKind::kMatrix}).flops;
  EXPECT_NEAR(flops, 5 * (4.0 * 64 * 64 * 256 + 2.0 * 64 * 64 * 64), 0.01 * flops);
  EXPECT_EQ(flops, OptimizerCost("muon", {256, 64, ParameterKind::kMatrix}).flops);
}

TEST(UpdateTime, StagesHaveTheTensorsOfTheRuntime) {
  const NetworkShape gpt{.layers = 3, .hidden = 8, .heads = 2, .sequence = 5, .vocabulary = 13};
  std::vector<NetworkShape> shapes(6, gpt);
  shapes[1].norm = NormChoice::kRms;
  shapes[2].positions = PositionChoice::kRotary;
  shapes[3].mlp = MlpChoice::kSwiGlu;
  shapes[4].bias = false;
  shapes[5] = {3,  8, 2,    5, 13, NormChoice::kRms, PositionChoice::kRotary, MlpChoice::kSwiGlu,
               20, 1, false};
  for (const NetworkShape& shape : shapes) {
    for (const LayerRange range : {LayerRange{0, 3}, {0, 1}, {1, 2}, {1, 3}}) {
      const StageLayout layout(shape, range);
      const std::vector<ParameterShape> stage = StageParameters(shape, range);
      ASSERT_EQ(stage.size(), layout.tensors().size());
      for (size_t i = 0; i < stage.size(); ++i) {
        const ParameterShape real = ShapeOf(layout.tensors()[i]);
        EXPECT_EQ(stage[i].rows, real.rows);
        EXPECT_EQ(stage[i].cols, real.cols);
        EXPECT_EQ(stage[i].kind, real.kind);
      }
    }
  }
}

TEST(UpdateTime, OfAStage) {
  const NetworkShape shape{
      .layers = 2, .hidden = 64, .heads = 2, .sequence = 32, .vocabulary = 100};
  const DeviceRates rates{{1'000'000'000'000}, {1'000'000'000'000}};
  const auto time = [&](const char* optimizer) {
    UpdateCost cost;
    for (const ParameterShape& tensor : StageParameters(shape, {0, 1})) {
      cost += OptimizerCost(optimizer, tensor);
    }
    return UpdateTime(cost, rates).count();
  };
  // 49152 elements in matrices, 9280 beside; AdamW moves 9 numbers of 4 bytes for each.
  EXPECT_EQ(time("adamw"), 2104);
  // Muon 13 for those in matrices, and Newton-Schulz: Σ 5 (4 · 64² · l + 2 · 64³), l = 192, 64,
  // 256, 256, which is 73400320.
  EXPECT_EQ(time("muon"), 2890 + 73'401);
}

TEST(OptimizerCost, NamesTheNearest) {
  try {
    OptimizerCost("mun", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "there is no optimizer \"mun\"; did you mean \"muon\"?");
  }
  EXPECT_THROW(CorrectionCost("feedback", {}, 1), Error);
}

}  // namespace
}  // namespace pipelag
