// Products in bfloat16: rounded as they should be, as good as eight bits let them be, and one and
// the same function on every schedule.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/schedule/generators.h"
#include "runtime/cpu/threads.h"
#include "runtime/data/sampler.h"
#include "runtime/network/products.h"
#include "runtime/serial.h"
#include "tests/runtime/network_kinds.h"
#include "tests/runtime/resumed_run.h"
#include "tests/runtime/scratch_folder.h"
#include "tests/runtime/socket_pairs.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {
namespace {

/// The relative error of one rounding: a bfloat16 has 8 significant bits.
constexpr double kUnit = 1.0 / 256;

float Rounded(float value) {
  uint16_t half = 0;
  RoundToBf16(1, &value, &half);
  const uint32_t bits = uint32_t{half} << 16;
  float back = 0;
  std::memcpy(&back, &bits, sizeof back);
  return back;
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(Rounded(1.0f), 1.0f);
  EXPECT_EQ(Rounded(-2.5f), -2.5f);
  EXPECT_EQ(Rounded(0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(Rounded(-0.0f)));
  // Neighbours of 1 are 1 − 1/256 and 1 + 1/128.
  EXPECT_EQ(Rounded(1 + 1.0f / 256), 1.0f);
  EXPECT_EQ(Rounded(1 + 3.0f / 256), 1 + 1.0f / 64);
  EXPECT_EQ(Rounded(std::nextafter(1 + 1.0f / 256, 2.0f)), 1 + 1.0f / 128);
  EXPECT_EQ(Rounded(std::nextafter(1 + 3.0f / 256, 1.0f)), 1 + 1.0f / 128);
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Rounded(infinite), infinite);
  EXPECT_EQ(Rounded(-infinite), -infinite);
  EXPECT_EQ(Rounded(std::numeric_limits<float>::max()), infinite);
  for (const uint32_t bits : {0x7fc00000U, 0x7f800001U, 0xffffffffU, 0x7fffffffU}) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    EXPECT_TRUE(std::isnan(Rounded(value))) << bits;
  }
  for (int i = 0; i < 1000; ++i) {
    const auto value = static_cast<float>(StandardNormal(RandomBits(3, static_cast<uint64_t>(i))));
    EXPECT_LE(std::fabs(Rounded(value) - value), kUnit * std::fabs(value));
  }
}

class ProductsInBf16 : public testing::Test {
 protected:
  void SetUp() override {
    PrepareThread();
    try {
      CheckPrecision(ProductPrecision::kBf16);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

std::vector<float> Drawn(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(StandardNormal(RandomBits(seed, i)));
  }
  return values;
}

/// Of whichever layout, into a part of a wider result, with and without what is there.
TEST_F(ProductsInBf16, AreThoseOfRoundedOperands) {
  struct Sizes {
    int64_t m, n, k;
  };
  Products<float> products(ProductPrecision::kBf16);
  for (const Sizes& s : {Sizes{1, 1, 1}, {5, 7, 3}, {16, 48, 32}, {33, 20, 129}, {64, 96, 16}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const float beta : {0.0f, 1.0f}) {
          const int64_t lda = (ta ? s.m : s.k) + 3;
          const int64_t ldb = (tb ? s.k : s.n) + 2;
          const int64_t ldc = s.n + 5;
          const std::vector<float> a = Drawn((ta ? s.k : s.m) * lda, 1);
          const std::vector<float> b = Drawn((tb ? s.n : s.k) * ldb, 2);
          const std::vector<float> before = Drawn(s.m * ldc, 3);
          std::vector<float> c = before;
          const auto multiply = [&] {
            products.Multiply(ta ? Transpose::kYes : Transpose::kNo,
                              tb ? Transpose::kYes : Transpose::kNo, s.m, s.n, s.k, a.data(), lda,
                              b.data(), ldb, beta, c.data(), ldc);
          };
          multiply();
          for (int64_t i = 0; i < s.m; ++i) {
            for (int64_t j = 0; j < ldc; ++j) {
              const auto at = static_cast<size_t>(i * ldc + j);
              if (j >= s.n) {
                ASSERT_EQ(c[at], before[at]);
                continue;
              }
              double sum = beta * static_cast<double>(before[at]);
              double size = std::fabs(sum);
              for (int64_t l = 0; l < s.k; ++l) {
                const double product =
                    static_cast<double>(
                        Rounded(a[static_cast<size_t>(ta ? l * lda + i : i * lda + l)])) *
                    Rounded(b[static_cast<size_t>(tb ? j * ldb + l : l * ldb + j)]);
                sum += product;
                size += std::fabs(product);
              }
              // Sums in fp32, in any order.
              ASSERT_NEAR(c[at], sum, static_cast<double>(s.k + 1) * size / (1 << 24))
                  << s.m << 'x' << s.n << 'x' << s.k << ta << tb;
            }
          }
          const std::vector<float> first = std::exchange(c, before);
          multiply();
          ASSERT_EQ(c, first);
        }
      }
    }
  }
}

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

/// A rounding moves a number by 0.4 units in the root mean square (evenly within its half spacing,
/// numbers spread evenly over their logarithm), a product's two operands by 0.6. Four blocks have
/// eight products each on the way forward and back; that they go their own ways makes it
/// 0.6 · √32 = 3.4 units.
TEST_F(ProductsInBf16, GradientsAreWithinWhatEightBitsAllow) {
  for (const NetworkShape& shape : {Small(), Llama(Small())}) {
    constexpr int kBatch = 4;
    StageChain<float> exact(shape, 1, kBatch);
    StageChain<float> rounded(shape, 1, kBatch, 1, Recompute::kNone, ProductPrecision::kBf16);
    Shake(exact, 0.05);
    Shake(rounded, 0.05);
    const auto tokens = RandomTokens(shape, kBatch, 5);
    const auto targets = RandomTokens(shape, kBatch, 6);
    const float scale = 1.0f / static_cast<float>(tokens.size());
    const double loss = exact.Forward(tokens.data(), targets.data()) * scale;
    EXPECT_NEAR(rounded.Forward(tokens.data(), targets.data()) * scale, loss, 2 * kUnit * loss);
    exact.Backward(tokens.data(), targets.data(), scale);
    rounded.Backward(tokens.data(), targets.data(), scale);
    for (const StageTensor& tensor : exact.networks[0].layout().tensors()) {
      const auto part = [&](const StageChain<float>& chain) {
        const float* begin = chain.gradients[0].data() + tensor.offset;
        return std::vector<float>(begin, begin + tensor.elements());
      };
      const std::vector<float> there = part(exact);
      std::vector<float> difference = part(rounded);
      for (size_t i = 0; i < there.size(); ++i) difference[i] -= there[i];
      EXPECT_GT(Norm(difference), 0) << tensor.name;
      if (tensor.name.ends_with("k_proj.bias")) continue;  // vanishes
      EXPECT_LT(Norm(difference), 4 * kUnit * Norm(there)) << tensor.name;
    }
  }
}

/// The wider products too, whose rows are strided parts of one another.
TEST_F(ProductsInBf16, HalvesAndRecomputationChangeNoBit) {
  for (const NetworkShape& shape : {Small(), Llama(Small())}) {
    const auto tokens = RandomTokens(shape, 2, 5);
    const auto targets = RandomTokens(shape, 2, 6);
    std::vector<std::vector<float>> first;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      StageChain<float> chain(shape, 2, 2, 1, recompute, ProductPrecision::kBf16);
      chain.Forward(tokens.data(), targets.data());
      chain.Backward(tokens.data(), targets.data(), 1);
      if (first.empty()) first = chain.gradients;
      EXPECT_EQ(chain.gradients, first);
      StageNetwork<float>& last = chain.networks[1];
      std::vector<float> kept(static_cast<size_t>(last.kept_elements()));
      std::vector<float> halves(chain.gradients[1].size());
      last.BackwardInput(chain.weights[1].data(), chain.activations[1].data(), targets.data(),
                         nullptr, 1, chain.input_gradients[1].data(), kept.data());
      last.BackwardWeight(chain.activations[1].data(), tokens.data(), kept.data(), halves.data());
      EXPECT_EQ(halves, first[1]);
    }
  }
}

TEST_F(ProductsInBf16, EveryScheduleEndsWithTheWeightsOfTheSerialReference) {
  std::string synchronous;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-v", "2bw", "dualpipe"}) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", schedule, ranks));
      const bool tied = std::string(schedule) != "2bw";
      const Program program(
          Generate(schedule,
                   {.ranks = ranks, .microbatches = kMicrobatches, .norm = true, .tied = tied}),
          4);
      TrainingOptions options = Options("adamw", "none", program.schedule().stages);
      options.precision = ProductPrecision::kBf16;
      options.shape.tied = tied;
      options.clip_norm = 0.3;
      const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
      const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
      EXPECT_EQ(threads.weights_sha256, serial.weights_sha256);
      EXPECT_EQ(threads.validation_loss, serial.validation_loss);
      EXPECT_EQ(TrainOnSocketPairs(program, options, TestCorpus()).weights_sha256,
                serial.weights_sha256);
      options.precision = ProductPrecision::kFp32;
      const TrainingResult wide = TrainSerially(PlanOf(program), options, TestCorpus());
      EXPECT_NE(wide.weights_sha256, serial.weights_sha256);
      EXPECT_NEAR(wide.final_loss(), serial.final_loss(), 0.02 * wide.final_loss());
      const std::string name = schedule;
      if (name != "gpipe" && name != "1f1b" && name != "interleaved-1f1b") continue;
      if (synchronous.empty()) synchronous = serial.weights_sha256;
      EXPECT_EQ(serial.weights_sha256, synchronous);
    }
  }
}

/// What is rounded once per version is rounded again for the next one: the losses of a run's second
/// step are those of networks that have never seen the first.
TEST_F(ProductsInBf16, ReadTheNewestWeights) {
  TrainingOptions options = Options("sgd", "none", 2);
  options.precision = ProductPrecision::kBf16;
  options.learning_rate.warmup_updates = 0;
  std::vector<std::vector<float>> after_one;
  options.on_final_weights = [&](const std::vector<StageWeights>& weights) {
    for (const StageWeights& stage : weights) {
      after_one.emplace_back(stage.weights, stage.weights + stage.layout->size());
    }
  };
  const Program program(Generate("1f1b", {.ranks = 2, .microbatches = 4}), 2);
  TrainOnThreads(program.WithSteps(1), options, TestCorpus());
  options.on_final_weights = {};
  double sum = 0;
  std::vector<Token> tokens(static_cast<size_t>(TokensPerStep(options, 1)));
  std::vector<Token> targets(tokens.size());
  for (int i = 4; i < 8; ++i) {
    StageChain<float> chain(options.shape, 2, options.microbatch_size, 1, Recompute::kNone,
                            ProductPrecision::kBf16);
    chain.weights = after_one;
    FillMicrobatch(TestCorpus(), options.seed, i, options.microbatch_size, options.shape.sequence,
                   tokens.data(), targets.data());
    sum += chain.Forward(tokens.data(), targets.data());
  }
  const double loss = sum / static_cast<double>(TokensPerStep(options, 4));
  EXPECT_EQ(TrainOnThreads(program, options, TestCorpus()).step_losses.at(1), loss);
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  EXPECT_EQ(serial.step_losses.at(1), loss);
  EXPECT_NE(serial.step_losses.at(0), loss);
}

TEST_F(ProductsInBf16, GoOnFromTheirOwnCheckpointsOnly) {
  const ScratchFolder folder;
  const Way way = Threads("1f1b", 2);
  TrainingOptions options = For(way, "adamw", "none");
  options.precision = ProductPrecision::kBf16;
  const TrainingResult whole =
      TrainFrom(way, options, {}, {.folder = folder.path(), .every = 1}, kSteps);
  EXPECT_EQ(TrainFrom(way, options, folder.path() / "step-00000003", {}, kSteps).weights_sha256,
            whole.weights_sha256);
  EXPECT_THROW(
      TrainFrom(way, For(way, "adamw", "none"), folder.path() / "step-00000003", {}, kSteps),
      Error);
}

}  // namespace
}  // namespace pipelag
