// Optimal splits against all splits, and what a split must never do.
#include "models/partition.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "models/random.h"
#include "models/schedule/generators.h"

namespace pipelag {
namespace {

__extension__ using Wide = unsigned __int128;

std::vector<NetworkPart> RandomParts(uint64_t seed, int count, bool ends) {
  const auto below = [&](uint64_t a, uint64_t b, uint64_t bound) {
    return static_cast<int64_t>(UniformBelow(RandomBits(seed, a, b), bound));
  };
  std::vector<NetworkPart> parts;
  for (int i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i);
    NetworkPart part;
    part.name = std::to_string(i);
    part.forward = Nanoseconds{below(n, 1, 9)};
    part.backward = Nanoseconds{1 + below(n, 2, 9)};
    part.memory = {.weights = below(n, 3, 8),
                   .gradients = below(n, 4, 8),
                   .optimizer = below(n, 5, 8),
                   .activation = below(n, 6, 8),
                   .message = below(n, 7, 30)};
    part.layer = !ends || (i > 0 && i + 1 < count);
    parts.push_back(part);
  }
  return parts;
}

/// Calls `visit` with every split of the parts that leaves each stage a layer.
template <class Visit>
void ForEachSplit(const std::vector<NetworkPart>& parts, int stages, const Visit& visit,
                  std::vector<LayerRange> begun = {}) {
  const int first = begun.empty() ? 0 : begun.back().last;
  const auto n = static_cast<int>(parts.size());
  if (stages == 0) {
    if (first == n) visit(begun);
    return;
  }
  for (int last = first + 1; last <= n; ++last) {
    begun.push_back({first, last});
    const bool has_layer = std::any_of(parts.begin() + first, parts.begin() + last,
                                       [](const NetworkPart& p) { return p.layer; });
    if (has_layer) ForEachSplit(parts, stages - 1, visit, begun);
    begun.pop_back();
  }
}

Wide Squares(const Partition& partition) {
  Wide sum = 0;
  for (const Nanoseconds time : partition.rank_time) {
    sum += static_cast<Wide>(time.count()) * static_cast<Wide>(time.count());
  }
  return sum;
}

/// By all splits: least bottleneck, then flattest, then more in front.
std::optional<Partition> BruteForce(const std::vector<NetworkPart>& parts,
                                    const PartitionSetting& setting) {
  std::optional<Partition> best;
  ForEachSplit(parts, setting.stages, [&](const std::vector<LayerRange>& split) {
    const Partition own = AssessPartition(parts, split, setting);
    for (const Bytes memory : own.rank_memory) {
      if (setting.memory_limit > 0 && memory > setting.memory_limit) return;
    }
    const auto key = [](const Partition& p) { return std::pair(p.bottleneck, Squares(p)); };
    const bool more_in_front =
        best && key(own) == key(*best) &&
        std::lexicographical_compare(
            best->stages.begin(), best->stages.end(), own.stages.begin(), own.stages.end(),
            [](const LayerRange& a, const LayerRange& b) { return a.last < b.last; });
    if (!best || key(own) < key(*best) || more_in_front) best = own;
  });
  return best;
}

PartitionSetting SettingOf(const std::string& schedule, int ranks, int chunks, Bytes limit) {
  GeneratorOptions options{.ranks = ranks, .microbatches = 2 * ranks};
  options.chunks = chunks;
  return PartitionSettingOf(Program(Generate(schedule, options), 4), Bandwidth{4'000'000'000},
                            limit);
}

TEST(Partition, IsTheBestOfAllSplitsWhereRanksHaveOneStage) {
  int infeasible = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int count = 4 + static_cast<int>(seed % 7);
    const int ranks = 1 + static_cast<int>(seed % 4);
    const std::vector<NetworkPart> parts = RandomParts(seed, count + 2, seed % 3 == 0);
    const char* schedule = seed % 2 == 0 ? "1f1b" : "2bw";
    const Bytes limit = seed % 5 == 0 ? 0 : 100 + static_cast<Bytes>(seed);
    const PartitionSetting setting = SettingOf(schedule, ranks, 0, limit);
    const std::optional<Partition> best = BruteForce(parts, setting);
    if (!best) {
      ++infeasible;
      EXPECT_THROW(BestPartition(parts, setting), Error);
      continue;
    }
    const Partition found = BestPartition(parts, setting);
    EXPECT_EQ(found.stages, best->stages) << seed;
    EXPECT_EQ(found.bottleneck, best->bottleneck) << seed;
    EXPECT_TRUE(found.proven);
  }
  EXPECT_GT(infeasible, 0);
  EXPECT_LT(infeasible, 30);
}

TEST(Partition, IsTheBestOfAllSplitsWhereRanksHaveSeveral) {
  struct Placement {
    const char* schedule;
    int ranks;
    int chunks;
  };
  int infeasible = 0;
  for (const Placement& placement : {Placement{"interleaved-1f1b", 2, 2},
                                     {"zb-v", 2, 0},
                                     {"interleaved-1f1b", 2, 3},
                                     {"dualpipe", 2, 0},
                                     {"interleaved-1f1b", 3, 2},
                                     {"dualpipe-v", 2, 0}}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const std::vector<NetworkPart> parts = RandomParts(100 + seed, 10, seed % 2 == 0);
      const Bytes limit = seed % 3 == 0 ? 0 : 170 + 8 * static_cast<Bytes>(seed);
      const PartitionSetting setting =
          SettingOf(placement.schedule, placement.ranks, placement.chunks, limit);
      const std::optional<Partition> best = BruteForce(parts, setting);
      if (!best) {
        ++infeasible;
        EXPECT_THROW(BestPartition(parts, setting), Error);
        continue;
      }
      const Partition found = BestPartition(parts, setting);
      EXPECT_TRUE(found.proven);
      EXPECT_EQ(found.bottleneck, best->bottleneck) << placement.schedule << ' ' << seed;
      EXPECT_EQ(found.stages.front().first, 0);
      EXPECT_EQ(found.stages.back().last, 10);
      for (const Bytes memory : found.rank_memory) {
        EXPECT_TRUE(limit == 0 || memory <= limit);
      }
    }
  }
  EXPECT_GT(infeasible, 0);
  EXPECT_LT(infeasible, 60);
}

TEST(Partition, OfEvenLayersIsTheEvenSplit) {
  for (int layers = 4; layers < 30; ++layers) {
    std::vector<NetworkPart> parts(static_cast<size_t>(layers));
    for (NetworkPart& part : parts) part.forward = Nanoseconds{1000};
    const Partition found = BestPartition(parts, SettingOf("1f1b", 4, 0, 0));
    EXPECT_EQ(found.stages, SplitLayers(layers, 4));
  }
}

/// 80 blocks with an embedding that costs little and a head that costs as much as two blocks, on 8
/// ranks of two chunks: 82 of 80 + 2 fit no better than 11 on one rank.
TEST(Partition, OfManyEqualLayersInChunksIsProven) {
  std::vector<NetworkPart> parts(82);
  for (NetworkPart& part : parts) part.forward = Nanoseconds{1'000'000};
  parts.front().layer = parts.back().layer = false;
  parts.front().forward = Nanoseconds{1000};
  parts.back().forward = Nanoseconds{2'000'000};
  const Partition found = BestPartition(parts, SettingOf("interleaved-1f1b", 8, 2, 0));
  EXPECT_TRUE(found.proven);
  EXPECT_LE(found.bottleneck, Nanoseconds{11'000'000});
  for (const LayerRange& range : found.stages) {
    EXPECT_LE(range.last - range.first, 6) << "of stages as fast, even ones are wanted";
  }
  const std::vector<int> counts = LayerCounts(parts, found.stages);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 80);
}

TEST(Partition, PaysForWhatPassesACut) {
  std::vector<NetworkPart> parts(3);
  for (NetworkPart& part : parts) part.forward = Nanoseconds{10};
  parts[0].memory.message = 1000;
  parts[1].memory.message = 10;
  parts[1].forward = Nanoseconds{12};
  PartitionSetting setting = SettingOf("1f1b", 2, 0, 0);
  setting.bandwidth = {};
  EXPECT_EQ(LayerCounts(parts, BestPartition(parts, setting).stages), (std::vector<int>{2, 1}));
  parts[0].forward = Nanoseconds{11};  // now the two halves differ by the cut alone
  parts[2].forward = Nanoseconds{11};
  parts[1].memory.message = 1000;
  parts[0].memory.message = 10;
  setting.bandwidth = Bandwidth{10'000'000'000};
  const Partition found = BestPartition(parts, setting);
  EXPECT_EQ(LayerCounts(parts, found.stages), (std::vector<int>{1, 2}));
  EXPECT_EQ(found.bottleneck, Nanoseconds{23});
  setting.bandwidth = Bandwidth{10'000'000};  // 2 · 10 bytes take 2 us
  EXPECT_EQ(BestPartition(parts, setting).bottleneck, Nanoseconds{2000});
}

std::string ErrorOf(const std::vector<NetworkPart>& parts, const PartitionSetting& setting) {
  try {
    BestPartition(parts, setting);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Partition, SaysByHowMuchTheLeanestMisses) {
  std::vector<NetworkPart> parts(4);
  for (NetworkPart& part : parts) part.memory.weights = 100;
  const auto of = [&](const char* schedule, int chunks) {
    PartitionSetting setting = SettingOf(schedule, 2, chunks, 150);
    for (StagePlace& place : setting.places) {
      place = {.rank = place.rank, .held = {{0, 0}}, .weight_versions = 1, .gradient_buffers = 0};
    }
    return ErrorOf(parts, setting);
  };
  EXPECT_EQ(of("1f1b", 0),
            "no split fits: even the leanest needs 200 B on rank 0, 50 B more than its 150 B");
  EXPECT_EQ(of("interleaved-1f1b", 2),
            "no split was found that fits: the leanest needs 200 B on rank 0, 50 B more than its "
            "150 B");
  EXPECT_EQ(ErrorOf(std::vector<NetworkPart>(3), SettingOf("1f1b", 4, 0, 0)),
            "4 stages cannot share 3 layers: every stage needs at least one");
}

/// Only what is between I and W holds what W needs more.
TEST(Partition, HoldsMoreBetweenInputAndWeights) {
  std::vector<NetworkPart> parts(2);
  for (NetworkPart& part : parts) {
    part.memory.activation = 10;
    part.memory.freed_at_input = -100;
  }
  const std::vector<LayerRange> each = {{0, 1}, {1, 2}};
  EXPECT_EQ(AssessPartition(parts, each, SettingOf("1f1b", 2, 0, 0)).rank_memory,
            (std::vector<Bytes>{20, 10}));
  EXPECT_EQ(AssessPartition(parts, each, SettingOf("zb-h1", 2, 0, 0)).rank_memory,
            (std::vector<Bytes>{20 + 100, 20 + 2 * 100}));
}

TEST(Partition, CountsKeepTheEndsWithTheirNeighbours) {
  std::vector<NetworkPart> parts(6);
  parts.front().layer = parts.back().layer = false;
  const std::vector<LayerRange> ranges = PartitionByCounts(parts, {1, 3});
  EXPECT_EQ(ranges, (std::vector<LayerRange>{{0, 2}, {2, 6}}));
  EXPECT_EQ(LayerCounts(parts, ranges), (std::vector<int>{1, 3}));
  EXPECT_THROW(PartitionByCounts(parts, {1, 2}), Error);
  for (const std::vector<int>& counts :
       std::vector<std::vector<int>>{{4, 0}, {0, 4}, {0, 1, 3, 0}}) {
    const std::vector<LayerRange> alone = PartitionByCounts(parts, counts);
    EXPECT_EQ(LayerCounts(parts, alone), counts);
    EXPECT_EQ(alone.front().first, 0);
    EXPECT_EQ(alone.back().last, 6);
    for (size_t s = 0; s < alone.size(); ++s) {
      EXPECT_GT(alone[s].last, alone[s].first);
      EXPECT_EQ(alone[s].first, s == 0 ? 0 : alone[s - 1].last);
    }
  }
  EXPECT_THROW(PartitionByCounts(parts, {2, 0, 2}), Error);
  EXPECT_THROW(PartitionByCounts(std::vector<NetworkPart>(4), {0, 4}), Error);
}

}  // namespace
}  // namespace pipelag
