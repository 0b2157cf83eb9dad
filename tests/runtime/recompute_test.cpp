// The backward in halves, and computing again what was not kept: to the last bit the same as the
// whole that kept everything.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tests/runtime/network_kinds.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {
namespace {

class Halves : public testing::TestWithParam<std::tuple<size_t, Recompute>> {};
INSTANTIATE_TEST_SUITE_P(StageNetwork, Halves,
                         testing::Combine(testing::Range<size_t>(0, 8),
                                          testing::Values(Recompute::kNone, Recompute::kSelective,
                                                          Recompute::kFull)));

// Also with what the halves do not keep computed again, and the whole keeping everything.
TEST_P(Halves, OfTheBackwardAreTheWhole) {
  const NetworkShape shape = AllKinds(Small())[std::get<0>(GetParam())];
  constexpr int kBatch = 2;
  for (int stages = 1; stages <= 3; ++stages) {
    StageChain<float> whole(shape, stages, kBatch);
    StageChain<float> halves(shape, stages, kBatch, 1, std::get<1>(GetParam()));
    Shake(whole, 0.05);
    Shake(halves, 0.05);
    // Twice, the weights' halves after both inputs' and in their order, into slots full of nothing.
    std::vector<std::vector<std::vector<float>>> kept(2), activations(2);
    std::vector<std::vector<Token>> tokens, targets;
    for (size_t i = 0; i < 2; ++i) {
      tokens.push_back(RandomTokens(shape, kBatch, 23 + i));
      targets.push_back(RandomTokens(shape, kBatch, 33 + i));
      whole.Forward(tokens[i].data(), targets[i].data());
      whole.Backward(tokens[i].data(), targets[i].data(), 0.01f);
      halves.Forward(tokens[i].data(), targets[i].data());
      for (size_t s = halves.networks.size(); s-- > 0;) {
        const bool last = s + 1 == halves.networks.size();
        auto& slot = kept[i].emplace_back(static_cast<size_t>(halves.networks[s].kept_elements()),
                                          std::nanf(""));
        halves.networks[s].BackwardInput(halves.weights[s].data(), halves.activations[s].data(),
                                         targets[i].data(),
                                         last ? nullptr : halves.input_gradients[s + 1].data(),
                                         0.01f, halves.input_gradients[s].data(), slot.data());
        EXPECT_TRUE(s == 0 || halves.input_gradients[s] == whole.input_gradients[s]) << stages;
      }
      activations[i] = halves.activations;
    }
    for (size_t i = 0; i < 2; ++i) {
      for (size_t s = 0; s < halves.networks.size(); ++s) {
        halves.networks[s].BackwardWeight(activations[i][s].data(), tokens[i].data(),
                                          kept[i][halves.networks.size() - 1 - s].data(),
                                          halves.gradients[s].data());
      }
    }
    EXPECT_EQ(halves.gradients, whole.gradients) << stages;
  }
}

class Recomputed : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(StageNetwork, Recomputed, testing::Range<size_t>(0, 8));

TEST_P(Recomputed, ChangesNoBitAndKeepsLess) {
  const NetworkShape shape = AllKinds(Small())[GetParam()];
  constexpr int kBatch = 2;
  const auto tokens = RandomTokens(shape, kBatch, 41);
  const auto targets = RandomTokens(shape, kBatch, 42);
  for (int stages = 1; stages <= 3; ++stages) {
    const auto run = [&](Recompute recompute) {
      StageChain<float> chain(shape, stages, kBatch, 1, recompute);
      Shake(chain, 0.05);
      // Another micro-batch's forward must not disturb what is kept for the first.
      chain.Forward(tokens.data(), targets.data());
      const auto slots = chain.activations;
      chain.Forward(targets.data(), tokens.data());
      chain.activations = slots;
      chain.Backward(tokens.data(), targets.data(), 0.01f);
      return chain;
    };
    const StageChain<float> none = run(Recompute::kNone);
    const StageChain<float> selective = run(Recompute::kSelective);
    const StageChain<float> full = run(Recompute::kFull);
    EXPECT_EQ(selective.gradients, none.gradients) << stages;
    EXPECT_EQ(full.gradients, none.gradients) << stages;
    EXPECT_EQ(selective.input_gradients, none.input_gradients) << stages;
    EXPECT_EQ(full.input_gradients, none.input_gradients) << stages;
    for (size_t s = 0; s < none.networks.size(); ++s) {
      const int64_t boundary = none.networks[s].boundary_elements();
      const auto layers = static_cast<int64_t>(SplitLayers(shape.layers, stages)[s].last -
                                               SplitLayers(shape.layers, stages)[s].first);
      const int64_t streams = layers + (none.networks[s].last() ? 1 : 0);
      EXPECT_EQ(full.networks[s].activation_elements(), streams * boundary);
      const int64_t scores = int64_t{kBatch} * shape.heads * shape.sequence * shape.sequence;
      EXPECT_LE(selective.networks[s].activation_elements(),
                none.networks[s].activation_elements() - layers * (scores + 2 * boundary));
      EXPECT_GT(selective.networks[s].activation_elements(),
                full.networks[s].activation_elements());
    }
  }
}

}  // namespace
}  // namespace pipelag
