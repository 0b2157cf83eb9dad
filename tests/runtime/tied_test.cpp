// A head tied to the token embedding: where a stage holds it, its gradient against finite
// differences, and files of weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/update_time.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/weight_file.h"
#include "tests/runtime/agreed.h"
#include "tests/runtime/network_kinds.h"
#include "tests/runtime/scratch_folder.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

NetworkShape Tied(NetworkShape shape) {
  shape.tied = true;
  return shape;
}

TEST(TiedLayout, HoldsTheTensorOnceOrACopyOfIt) {
  for (const NetworkShape& shape : AllKinds(Tiny())) {
    const NetworkShape tied = Tied(shape);
    const int64_t table = int64_t{shape.vocabulary} * shape.hidden;
    EXPECT_EQ(NetworkParameters(tied), NetworkParameters(shape) - table);
    EXPECT_EQ(TensorCount(tied), TensorCount(shape) - 1);
    const StageLayout whole(tied, {0, 2});
    EXPECT_TRUE(whole.joins());
    EXPECT_EQ(whole.tied(), &whole.tensors().front());
    EXPECT_EQ(whole.gradient_size(), whole.size() + table);
    EXPECT_EQ(static_cast<int>(whole.tensors().size()), TensorCount(tied));
    const StageLayout first(tied, {0, 1});
    const StageLayout last(tied, {1, 2});
    EXPECT_EQ(first.tied(), &first.tensors().front());
    EXPECT_EQ(last.tied(), &last.tensors().back());
    EXPECT_EQ(last.tied()->name, first.tied()->name);
    EXPECT_EQ(last.tied()->global_index, 0);
    EXPECT_EQ(last.tied()->role, TensorRole::kEmbedding);
    EXPECT_TRUE(last.tied()->copy);
    for (const StageLayout& layout : {first, last}) {
      EXPECT_FALSE(layout.joins());
      EXPECT_EQ(layout.gradient_size(), layout.size());
    }
    int64_t parameters = 0;
    for (const StageTensor& tensor : whole.tensors()) parameters += tensor.elements();
    EXPECT_EQ(parameters, NetworkParameters(tied));
  }
  EXPECT_EQ(StageLayout(Tiny(), {0, 2}).tied(), nullptr);
}

class TiedGradient : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, TiedGradient, testing::Values(1, 2));

/// Every element of the one matrix, moved wherever it is held.
TEST_P(TiedGradient, AgreesWithFiniteDifferences) {
  for (const NetworkShape& shape : {Tied(Tiny()), Tied(Llama(Tiny()))}) {
    constexpr int kBatch = 2;
    StageChain<double> chain(shape, GetParam(), kBatch);
    Shake(chain, 0.4);
    const auto tokens = RandomTokens(shape, kBatch, 5);
    const auto targets = RandomTokens(shape, kBatch, 6);
    const double scale = 1.0 / static_cast<double>(tokens.size());
    chain.Forward(tokens.data(), targets.data());
    chain.Backward(tokens.data(), targets.data(), scale);
    const StageTensor& first = *chain.networks.front().layout().tied();
    const StageTensor& last = *chain.networks.back().layout().tied();
    JoinTied(chain.networks.front().layout(), chain.gradients.front().data());
    for (int64_t i = 0; i < first.elements(); ++i) {
      double* lookup = chain.weights.front().data() + first.offset + i;
      double* head = chain.weights.back().data() + last.offset + i;
      double gradient = chain.gradients.front()[static_cast<size_t>(first.offset + i)];
      if (lookup != head) gradient += chain.gradients.back()[static_cast<size_t>(last.offset + i)];
      const double centre = *lookup;
      const auto difference = [&](double h) {
        *lookup = *head = centre + h;
        const double above = chain.Forward(tokens.data(), targets.data());
        *lookup = *head = centre - h;
        const double below = chain.Forward(tokens.data(), targets.data());
        *lookup = *head = centre;
        return scale * (above - below) / (2 * h);
      };
      constexpr double h = 1e-3;
      const double expected = (4 * difference(h / 2) - difference(h)) / 3;
      ASSERT_NEAR(gradient, expected, 1e-7 * std::max(1e-2, std::fabs(expected))) << i;
    }
  }
}

TEST(TiedFiles, HoldItOnce) {
  constexpr NetworkShape kShape{
      .layers = 2, .hidden = 4, .heads = 2, .sequence = 3, .vocabulary = 130, .tied = true};
  const ScratchFolder folder;
  const auto drawn = [&](const NetworkShape& shape, int stages) {
    StageChain<float> chain(shape, stages, 1, 5);
    std::vector<StageWeights> views;
    for (size_t s = 0; s < chain.networks.size(); ++s) {
      views.push_back({&chain.networks[s].layout(), chain.weights[s].data()});
    }
    for (const char* name : {"one.bin", "one.safetensors"}) {
      ExportWeights(folder.path() / name, shape, views);
    }
    return WeightsSha256(views);
  };
  for (const int stages : {1, 2}) {
    const std::string digest = drawn(kShape, stages);
    const SafetensorsFile file(folder.path() / "one.safetensors");
    EXPECT_FALSE(file.tensors().contains("lm_head.weight"));
    EXPECT_EQ(static_cast<int>(file.tensors().size()), TensorCount(kShape));
    for (const char* name : {"one.bin", "one.safetensors"}) {
      for (const int again : {1, 2}) {
        const auto start = OpenWeights(folder.path() / name, kShape);
        StageChain<float> chain(kShape, again, 1);
        std::vector<StageWeights> views;
        for (size_t s = 0; s < chain.networks.size(); ++s) {
          start->ReadVersion(chain.networks[s].layout(), 0, chain.weights[s].data());
          views.push_back({&chain.networks[s].layout(), chain.weights[s].data()});
        }
        EXPECT_EQ(WeightsSha256(views), digest) << name;
        const StageLayout& last = chain.networks.back().layout();
        EXPECT_EQ(std::memcmp(chain.weights.back().data() + last.tied()->offset,
                              chain.weights.front().data(),
                              static_cast<size_t>(last.tied()->elements()) * sizeof(float)),
                  0);
      }
    }
  }
  // A file with a head: the same again, or another one.
  NetworkShape untied = kShape;
  untied.tied = false;
  StageChain<float> chain(untied, 1, 1, 5);
  const StageLayout& layout = chain.networks[0].layout();
  float* head = chain.weights[0].data() + layout.Find("lm_head.weight").offset;
  std::copy_n(chain.weights[0].data(), 130 * 4, head);
  const std::filesystem::path file = folder.path() / "head.safetensors";
  ExportWeights(file, untied, {{&layout, chain.weights[0].data()}});
  EXPECT_EQ(ReasonOf([&] { OpenWeights(file, kShape); }), "");
  head[3] += 1;
  ExportWeights(file, untied, {{&layout, chain.weights[0].data()}});
  EXPECT_THAT(ReasonOf([&] { OpenWeights(file, kShape); }), HasSubstr("holds a head of its own"));
}

}  // namespace
}  // namespace pipelag
