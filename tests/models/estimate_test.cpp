// A run's times and sizes from its network and machine: known cases, and which way they go.
#include "models/cost/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/architecture/config.h"
#include "models/cost/fit.h"
#include "models/error.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

/// Megatron's 22B on one node (Korthikanti et al., arXiv 2205.05198, table 3).
Transformer Gpt22B() { return Gpt({.layers = 48, .hidden = 6144, .heads = 64}); }

RunLayout OneNode() {
  RunLayout layout;
  layout.sharding.tensor = 8;
  layout.sharding.sequences = 4;
  layout.sharding.tokens = 2048;
  layout.sharding.flash = false;
  layout.precision = Precision::kFp16;
  layout.shard_states = 0;
  return layout;
}

Estimate Of(const RunLayout& layout, const char* machine = "dgx-a100",
            const Efficiency& efficiency = {}) {
  return EstimateRun(Gpt22B(), ReadMachine(machine), layout, efficiency);
}

RunLayout Pipelined() {
  RunLayout layout = OneNode();
  layout.pipeline = 4;
  layout.data = 2;
  layout.microbatches = 8;
  return layout;
}

TEST(Estimates, CountFlopsAsMegatronDoes) {
  // SC21, arXiv 2104.04473, section 5.1, without its recomputation:
  // 72 B s l h² (1 + s/(6h) + V/(12 l h)).
  RunLayout layout = Pipelined();
  const double tokens = 2.0 * 8 * 4 * 2048;
  const double blocks = 72.0 * tokens * 48 * 6144 * 6144;
  const double expected = blocks * (1 + 2048.0 / (6 * 6144) + 51200.0 / (12.0 * 48 * 6144));
  EXPECT_NEAR(Of(layout).model_flops / expected, 1, 1e-12);
  EXPECT_EQ(Of(layout).hardware_flops, Of(layout).model_flops);
  layout.sharding.recompute = Recompute::kFull;
  // Every block's forward once more, the head's not.
  EXPECT_NEAR(Of(layout).hardware_flops / expected, 4.0 / 3, 0.01);
}

TEST(Estimates, HoldMegatronsBytesPerParameter) {
  // Figure 1 of arXiv 2205.05198: 45.5625 GiB of parameters and optimizer of the 22B's blocks, at
  // 18 bytes per parameter; with fp16 weights and gradients Megatron-LM holds 20.
  RunLayout layout = OneNode();
  for (const auto& [precision, bytes] :
       {std::pair{Precision::kBf16, 18.0}, {Precision::kFp16, 20.0}}) {
    layout.precision = precision;
    const StageMemory stage = Of(layout).memory.stages.at(0);
    const double standing = static_cast<double>(stage.weights + stage.gradients + stage.optimizer);
    EXPECT_NEAR(standing / (1 << 30), 45.5625 * bytes / 18, 0.025 * 45.5625);
  }
}

TEST(Estimates, ShardWhatZeroShards) {
  RunLayout layout = Pipelined();
  const StageMemory whole = Of(layout).memory.stages.at(1);
  layout.shard_states = 1;
  EXPECT_EQ(Of(layout).memory.stages.at(1).optimizer, (whole.optimizer + 1) / 2);
  EXPECT_EQ(Of(layout).memory.stages.at(1).gradients, whole.gradients);
  EXPECT_LT(Of(layout).costs.update.at(1), Of(Pipelined()).costs.update.at(1));
  layout.shard_states = 2;
  EXPECT_EQ(Of(layout).memory.stages.at(1).gradients, (whole.gradients + 1) / 2);
  layout.shard_states = 3;
  EXPECT_EQ(Of(layout).memory.stages.at(1).weights, (whole.weights + 1) / 2);
  EXPECT_GT(Of(layout).costs.forward.at(1), Of(Pipelined()).costs.forward.at(1));
}

TEST(Estimates, PutEmbeddingAndHeadOnTheOuterStages) {
  const Estimate estimate = Of(Pipelined());
  const std::vector<Nanoseconds>& forward = estimate.costs.forward;
  ASSERT_EQ(forward.size(), 4U);
  EXPECT_EQ(forward[1], forward[2]);
  EXPECT_GT(forward[0], forward[1]);
  EXPECT_GT(forward[3], forward[0]);
  EXPECT_GT(estimate.memory.stages[0].weights, estimate.memory.stages[1].weights);
  // As PyTorch's backward: about twice the forward, its halves about alike.
  const auto seconds = [](Nanoseconds time) { return static_cast<double>(time.count()); };
  EXPECT_NEAR(seconds(estimate.costs.backward[1]) / seconds(forward[1]), 2, 0.4);
  EXPECT_GE(estimate.costs.backward_input[1], estimate.costs.backward_weight[1]);
}

TEST(Estimates, KeepStagesFromTheSplit) {
  RunLayout layout = Pipelined();
  layout.split = {0, 24, 24, 0};
  const Estimate estimate = Of(layout);
  EXPECT_LT(estimate.costs.forward[0], estimate.costs.forward[1]);
  EXPECT_LT(estimate.costs.forward[3], estimate.costs.forward[1]);
  const auto refusal = [&](std::vector<int> split) -> std::string {
    layout.split = std::move(split);
    try {
      Of(layout);
    } catch (const Error& error) {
      return error.what();
    }
    return "was taken";
  };
  EXPECT_THAT(refusal({12, 12, 12, 11}), HasSubstr("adds up to 47 blocks, but there are 48"));
  EXPECT_THAT(refusal({24, 0, 12, 12}), HasSubstr("leaves stage 1 with 0 blocks"));
  EXPECT_THAT(refusal({24, 24}), HasSubstr("names 2 stages, but the layout has 4"));
}

TEST(Estimates, AreNeverWorseWithFasterHardware) {
  RunLayout layout = Pipelined();
  layout.sharding.context = 2;
  layout.sharding.flash = true;
  layout.shard_states = 1;
  const Machine slow = ReadMachine("a100-ethernet");
  const auto better = [&](auto change) {
    Machine machine = slow;
    change(machine);
    const Estimate before = EstimateRun(Gpt22B(), slow, layout, {});
    const Estimate after = EstimateRun(Gpt22B(), machine, layout, {});
    bool shorter = false;
    for (size_t s = 0; s < before.costs.forward.size(); ++s) {
      const auto compare = [&](Nanoseconds x, Nanoseconds y) {
        EXPECT_LE(y, x);
        shorter = shorter || y < x;
      };
      compare(before.costs.forward[s], after.costs.forward[s]);
      compare(before.costs.backward[s], after.costs.backward[s]);
      compare(before.costs.backward_input[s], after.costs.backward_input[s]);
      compare(before.costs.backward_weight[s], after.costs.backward_weight[s]);
      compare(before.costs.update[s], after.costs.update[s]);
      compare(before.reduction[s], after.reduction[s]);
    }
    shorter = shorter || after.costs.p2p_bandwidth.bytes_per_second >
                             before.costs.p2p_bandwidth.bytes_per_second;
    EXPECT_TRUE(shorter);
  };
  better([](Machine& machine) { machine.between.bandwidth.bytes_per_second *= 4; });
  better([](Machine& machine) { machine.inside.bandwidth.bytes_per_second *= 4; });
  better([](Machine& machine) { machine.accelerator.memory_bandwidth.bytes_per_second *= 4; });
  better([](Machine& machine) {
    for (auto& [precision, peak] : machine.accelerator.peak_flops) peak *= 4;
  });
  better([](Machine& machine) { machine.cards_per_node = 8; });
}

TEST(Estimates, OfOneRunFitTheMeasuredLayer) {
  // Table 4 of arXiv 2205.05198: a layer of the 22B takes 7.7 ms forward and 11.9 ms backward;
  // uncalibrated within a fifth.
  RunLayout layout = OneNode();
  RunLayout shorter = layout;
  const auto forward = [&](int layers) {
    const Transformer model = Gpt({.layers = layers, .hidden = 6144, .heads = 64});
    const Estimate estimate = EstimateRun(model, ReadMachine("dgx-a100"), layout, {});
    return std::pair{static_cast<double>(estimate.costs.forward.at(0).count()) * 1e-6,
                     static_cast<double>(estimate.costs.backward.at(0).count()) * 1e-6};
  };
  const auto two = forward(2);
  const auto one = forward(1);
  EXPECT_NEAR(two.first - one.first, 7.7, 0.2 * 7.7);
  EXPECT_NEAR(two.second - one.second, 11.9, 0.2 * 11.9);
}

TEST(Estimates, HideReductionsWhereTheyRunBeside) {
  RunLayout layout = Pipelined();
  layout.shard_states = 1;
  const Nanoseconds shown = Of(layout).reduction.at(1);
  layout.overlap_reduction = true;
  EXPECT_LT(Of(layout).reduction.at(1), shown / 4);
  layout.data = 1;
  EXPECT_TRUE(Of(layout).reduction.empty());
}

TEST(Estimates, HideCollectivesBesideProducts) {
  RunLayout layout = Pipelined();
  const Nanoseconds shown = Of(layout).costs.forward.at(1);
  layout.overlap_tensor = true;
  EXPECT_LT(Of(layout).costs.forward.at(1), shown);
}

TEST(Estimates, OverlapHidesExpertsMessages) {
  const Transformer model = ReadTransformer("Mixtral-8x7B");
  RunLayout layout;
  layout.sharding.tokens = 4096;
  layout.sharding.expert = 8;
  layout.data = 8;
  layout.pipeline = 4;
  const auto estimate = [&](const char* machine) {
    return EstimateRun(model, ReadMachine(machine), layout, {}).costs;
  };
  const Costs near = estimate("dgx-h100");
  EXPECT_LT(near.overlap.at(1), near.forward[1] + near.backward[1]);
  layout.sharding.expert = 1;
  EXPECT_TRUE(estimate("dgx-h100").overlap.empty());
  EXPECT_GT(near.forward[1], estimate("dgx-h100").forward[1]);
}

TEST(Estimates, AddWhatBlocks) {
  RunLayout layout = Pipelined();
  const Costs free = Of(layout).costs;
  layout.blocking_messages = true;
  const Costs blocked = Of(layout).costs;
  const Nanoseconds message = TransferTime(free.activation_bytes, free.p2p_bandwidth) +
                              free.p2p_latency + Nanoseconds{200'000};
  EXPECT_EQ(blocked.forward[0], free.forward[0] + message);
  EXPECT_EQ(blocked.forward[3], free.forward[3]);
  EXPECT_EQ(blocked.backward[0], free.backward[0]);
  EXPECT_EQ(blocked.backward[3], free.backward[3] + message);
  EXPECT_EQ(blocked.p2p_latency.count(), 0);
  layout.blocking_launches = true;
  EXPECT_GT(Of(layout).costs.forward[0], blocked.forward[0]);
}

TEST(Estimates, RefuseWhatDoesNotFit) {
  const auto refusal = [](auto change) -> std::string {
    RunLayout layout = OneNode();
    change(layout);
    try {
      Of(layout);
    } catch (const Error& error) {
      return error.what();
    }
    return "was taken";
  };
  EXPECT_THAT(refusal([](RunLayout& layout) { layout.pipeline = 64; }),
              HasSubstr("48 blocks, too few for 64 stages"));
  EXPECT_THAT(refusal([](RunLayout& layout) { layout.sharding.tensor = 7; }), HasSubstr("7"));
  EXPECT_THAT(refusal([](RunLayout& layout) {
                layout.data = 3;
                layout.sharding.expert = 2;
              }),
              HasSubstr("expert parallelism of 2"));
  EXPECT_THAT(refusal([](RunLayout& layout) { layout.precision = Precision::kFp8; }),
              HasSubstr("A100-SXM4-80GB has no arithmetic in fp8"));
}

TEST(Fits, FindTheFactorOfASlowerMachine) {
  const auto seconds = [](const Efficiency& efficiency, int sequences) {
    RunLayout layout = OneNode();
    layout.sharding.sequences = sequences;
    const Estimate estimate = Of(layout, "dgx-a100", efficiency);
    return static_cast<double>((estimate.costs.forward[0] + estimate.costs.backward[0]).count());
  };
  Efficiency truth;
  truth.compute_factor = 1.3;
  const auto errors = [&](const Efficiency& efficiency) {
    return std::vector<double>{std::log(seconds(efficiency, 1) / seconds(truth, 1)),
                               std::log(seconds(efficiency, 4) / seconds(truth, 4))};
  };
  const Efficiency fitted = FitEfficiency({}, errors);
  EXPECT_NEAR(fitted.compute_factor, 1.3, 0.02);
  EXPECT_NEAR(fitted.communication_factor, 1, 0.02);
  EXPECT_LT(std::abs(errors(fitted)[0]), 0.005);
}

}  // namespace
}  // namespace pipelag
