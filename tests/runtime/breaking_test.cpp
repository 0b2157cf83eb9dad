// A run that diverges names the stage that broke it, wherever its ranks are, and not the one where
// that showed.
#include "runtime/breaking.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/schedule/generators.h"
#include "runtime/data/grammar.h"
#include "runtime/network/stage.h"
#include "runtime/serial.h"
#include "tests/runtime/socket_pairs.h"

namespace pipelag {
namespace {

using testing::MatchesRegex;

constexpr int kStages = 3;

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

/// Drawn weights, those of some tensors replaced.
class Spoiled : public StartingPoint {
 public:
  Spoiled(const NetworkShape& shape, std::vector<std::pair<std::string, float>> replaced)
      : shape_(shape), replaced_(std::move(replaced)) {}

  int64_t step() const override { return 0; }
  void ReadVersion(const StageLayout& layout, int64_t, float* weights) const override {
    InitialiseWeights(layout, shape_, 1, weights);
    for (const StageTensor& place : layout.tensors()) {
      for (const auto& [name, value] : replaced_) {
        if (place.name != name) continue;
        // Of both signs, so that sums stay small.
        for (int64_t i = 0; i < place.elements(); ++i) {
          weights[place.offset + i] = i % 2 == 0 ? value : -value;
        }
      }
    }
  }
  void ReadState(Optimizer&) const override {}

 private:
  NetworkShape shape_;
  std::vector<std::pair<std::string, float>> replaced_;
};

TrainingOptions Options(std::vector<std::pair<std::string, float>> replaced) {
  TrainingOptions options;
  options.shape = {.layers = 6, .hidden = 8, .heads = 2, .sequence = 4, .vocabulary = 256};
  options.split = SplitLayers(options.shape.layers, kStages);
  options.microbatch_size = 1;
  options.optimizer.name = "sgd";
  options.learning_rate = {.peak = 0.01f, .total_updates = 6};
  options.validation_microbatches = 1;
  options.start = std::make_shared<const Spoiled>(options.shape, std::move(replaced));
  return options;
}

/// What all ways of running say of it, which is the same.
std::string WhereBroken(const std::string& schedule, const TrainingOptions& options, int64_t step) {
  const Program program(
      Generate(schedule,
               {.ranks = kStages, .microbatches = 6, .norm = options.clip_norm.has_value()}),
      6);
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
  const TrainingResult processes = TrainOnSocketPairs(program, options, TestCorpus());
  for (const TrainingResult* run : {&serial, &threads, &processes}) {
    EXPECT_EQ(run->diverged, step) << schedule;
    EXPECT_EQ(run->diverged_where, serial.diverged_where) << schedule;
  }
  return serial.diverged_where;
}

// Its own forward yields more than a float holds.
TEST(Breaking, OfAForwardIsOfTheStageThatYieldsIt) {
  for (const char* schedule : {"gpipe", "1f1b", "2bw"}) {
    EXPECT_EQ(
        WhereBroken(schedule,
                    Options({{"h.2.mlp.c_fc.weight", 1e30f}, {"h.2.mlp.c_proj.weight", 1e30f}}), 1),
        "stage 1: the output of 1F0 is not finite");
  }
}

TEST(Breaking, OfWeightsNamesThem) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(WhereBroken("1f1b", Options({{"h.3.ln_2.weight", kNone}}), 1),
            "stage 1: h.3.ln_2.weight is not finite");
  EXPECT_EQ(WhereBroken("2bw", Options({{"ln_f.weight", kNone}}), 1),
            "stage 2: ln_f.weight is not finite");
}

TEST(Breaking, OfTheLossIsOfTheLastStage) {
  EXPECT_EQ(WhereBroken("1f1b", Options({{"ln_f.weight", 1e30f}, {"lm_head.weight", 1e30f}}), 1),
            "stage 2: the loss of 2F0 is not finite");
}

// What is large both ways round passes forwards, and only the derivative overflows: the update that
// follows breaks stage 0 too.
TEST(Breaking, OfABackwardIsOfTheStageThatYieldsIt) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    EXPECT_EQ(WhereBroken(
                  schedule,
                  Options({{"h.2.mlp.c_fc.weight", 1e20f}, {"h.2.mlp.c_proj.weight", 1e-20f}}), 2),
              "stage 1: the gradient out of 1B0 is not finite, in step 1");
  }
}

TEST(Breaking, OfGradientsIsOfTheLastStageThatHasThem) {
  const TrainingOptions options = Options({});
  BreakWatch watch;
  const StageLayout layout(options.shape, options.split[1]);
  std::vector<double> norms(static_cast<size_t>(TensorCount(options.shape)), 1.0);
  watch.SeeNorms(1, 4, layout, norms);
  EXPECT_FALSE(watch.first());
  norms[static_cast<size_t>(layout.tensors()[2].global_index)] = INFINITY;
  BreakWatch other;
  other.SeeNorms(0, 4, StageLayout(options.shape, options.split[0]), norms);
  EXPECT_FALSE(other.first());
  norms[0] = INFINITY;
  other.SeeNorms(0, 4, StageLayout(options.shape, options.split[0]), norms);
  watch.SeeNorms(1, 4, layout, norms);
  const auto first = Earliest({other.first(), std::nullopt, watch.first()});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->where,
            fmt::format("stage 1: the gradient of {} is not finite", layout.tensors()[2].name));
}

}  // namespace
}  // namespace pipelag
