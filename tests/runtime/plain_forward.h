// A network's forward pass beside that of one written as plainly as can be, for tests.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "models/random.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {

/// Plain(shape, layout, weights).Loss(tokens, targets) is the loss of one sequence. Weights are far
/// from their first values, so that no gain is 1 and no shift 0.
template <class Plain>
void ExpectForwardOf(const NetworkShape& shape, double tolerance) {
  constexpr int kBatch = 2;
  StageChain<double> chain(shape, 1, kBatch);
  const StageLayout& layout = chain.networks[0].layout();
  for (const StageTensor& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const uint64_t bits = RandomBits(31, static_cast<uint64_t>(tensor.offset + i));
      chain.weights[0][static_cast<size_t>(tensor.offset + i)] += 0.3 * StandardNormal(bits);
    }
  }
  const auto length = static_cast<size_t>(shape.sequence);
  const auto words = static_cast<uint64_t>(shape.vocabulary);
  std::vector<Token> tokens, targets;
  for (uint64_t i = 0; i < kBatch * length; ++i) {
    tokens.push_back(static_cast<Token>(UniformBelow(RandomBits(32, i), words)));
    targets.push_back(static_cast<Token>(UniformBelow(RandomBits(33, i), words)));
  }
  const Plain plain(shape, layout, chain.weights[0].data());
  const double expected =
      plain.Loss(&tokens[0], &targets[0]) + plain.Loss(&tokens[length], &targets[length]);
  EXPECT_NEAR(chain.Forward(tokens.data(), targets.data()) / expected, 1, tolerance);
}

}  // namespace pipelag
