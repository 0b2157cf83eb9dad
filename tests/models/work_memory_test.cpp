// What a device holds of a network under a schedule, against published figures.
#include <gtest/gtest.h>

#include "models/architecture/config.h"
#include "models/schedule/generators.h"
#include "models/schedule/program.h"
#include "tests/models/megatron.h"

namespace pipelag {
namespace {

struct Korthikanti {
  const char* model;
  int ranks, chunks, microbatches;
  int64_t sequences;
  double gib_none, gib_sequence_selective;               ///< figure 1
  double sequence, selective, sequence_selective, full;  ///< figure 7, in percent
};

/// arXiv 2205.05198, figures 1 and 7; tensor parallelism of 8.
constexpr Korthikanti kFigures[] = {
    {"megatron-22b", 1, 1, 1, 4, 59.25, 9.5625, 66.84, 49.42, 16.18, 7.64},
    {"megatron-175b", 8, 3, 64, 1, 66.84375, 12.3515625, 62.04, 56.53, 18.49, 8.71},
};

TEST(WorkMemory, FillsTheFirstRankAsInKorthikantisFigures) {
  for (const Korthikanti& figure : kFigures) {
    const Transformer model = ReadTransformer(figure.model);
    const Schedule schedule = Generate(
        figure.chunks > 1 ? "interleaved-1f1b" : "1f1b",
        {.ranks = figure.ranks, .microbatches = figure.microbatches, .chunks = figure.chunks});
    const Program program(schedule, 1);
    const double blocks = static_cast<double>(model.layers()) / schedule.stages *
                          static_cast<double>(program.PeakInFlightOfRank(0));
    Sharding sharding = Megatron(8, figure.sequences, 2048);
    const auto gib = [&](bool sequence_parallel, Recompute recompute) {
      sharding.sequence_parallel = sequence_parallel;
      sharding.recompute = recompute;
      return blocks * static_cast<double>(BlockWork(model, model.blocks[0], sharding).activation) /
             (1 << 30);
    };
    const double none = gib(false, Recompute::kNone);
    EXPECT_DOUBLE_EQ(none, figure.gib_none);
    EXPECT_DOUBLE_EQ(gib(true, Recompute::kSelective), figure.gib_sequence_selective);
    const auto percent = [&](bool sequence_parallel, Recompute recompute) {
      return 100 * gib(sequence_parallel, recompute) / none;
    };
    EXPECT_NEAR(percent(true, Recompute::kNone) / figure.sequence, 1, 0.002);
    EXPECT_NEAR(percent(false, Recompute::kSelective) / figure.selective, 1, 0.002);
    EXPECT_NEAR(percent(true, Recompute::kSelective) / figure.sequence_selective, 1, 0.003);
    EXPECT_NEAR(percent(false, Recompute::kFull) / figure.full, 1, 0.006);
  }
}

/// Megatron-LM's own record of test gpt3_7b_tp4_pp1_memory_speed (tests/functional_tests, golden
/// values of three machines): tensor 4, two data-parallel copies that share Adam's states, weights
/// in 16 bits and gradients in 32. Its cross entropy works in place.
TEST(WorkMemory, FillsADeviceAsMegatronMeasured) {
  Transformer model = Gpt({.layers = 32,
                           .hidden = 4096,
                           .heads = 32,
                           .vocabulary = 131072,
                           .sequence = 8192,
                           .key_value_heads = 8});
  model.tied = false;
  Sharding sharding;
  sharding.tensor = 4;
  sharding.sequences = 2;
  sharding.tokens = 8192;
  sharding.loss_in_place = true;
  const NetworkWork work = WorkOf(model, sharding);
  const double bytes = static_cast<double>(work.Parameters()) * (2 + 4 + 12.0 / 2) +
                       static_cast<double>(work.Activation() + work.head.recompute_peak);
  EXPECT_NEAR(bytes / 57143791616.0, 1, 0.02) << "H100";
  EXPECT_NEAR(bytes / 58217476096.0, 1, 0.03) << "GB200";
  EXPECT_NEAR(bytes / 58188115968.0, 1, 0.03) << "A100";
}

struct ZeroBubbleRow {
  int64_t heads, hidden;
  int ranks;
  int64_t sequences;
  double gb;
};

/// Zero Bubble Pipeline Parallelism (arXiv 2401.10241), tables 4 and 11: peak of 1F1B. All ranks
/// but the ends have three blocks, so the second holds most. Adam in mixed precision with gradients
/// in 16 bits; that the GB are of 10^9 bytes is assumed.
TEST(WorkMemory, FillsADeviceAsZeroBubbleMeasured) {
  constexpr ZeroBubbleRow kRows[] = {
      {24, 2304, 8, 6, 30}, {24, 2304, 8, 12, 57}, {40, 5120, 16, 1, 32}, {40, 5120, 16, 2, 50}};
  for (const ZeroBubbleRow& row : kRows) {
    const Transformer model =
        Gpt({.layers = 3, .hidden = row.hidden, .heads = row.heads, .sequence = 1024});
    const PartWork block = BlockWork(model, model.blocks[0], Megatron(1, row.sequences, 1024));
    const double bytes = 3 * 16.0 * static_cast<double>(block.parameters) +
                         3 * (row.ranks - 1.0) * static_cast<double>(block.activation) +
                         static_cast<double>(block.recompute_peak);
    EXPECT_NEAR(bytes / 1e9 / row.gb, 1, 0.05) << row.hidden << ' ' << row.sequences;
  }
}

}  // namespace
}  // namespace pipelag
