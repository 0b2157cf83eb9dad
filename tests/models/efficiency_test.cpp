// What products, passes and collectives take: bounds, and which way they go.
#include "models/cost/efficiency.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "models/cost/part_time.h"
#include "models/error.h"
#include "models/file.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

const Efficiency kDefault;

double Seconds(const MatrixProduct& product, const char* machine = "dgx-a100",
               Precision precision = Precision::kBf16) {
  return ProductSeconds(product, ReadMachine(machine).accelerator, precision, true, kDefault);
}

double Share(const MatrixProduct& product) {
  return product.Flops() / Seconds(product) /
         PeakFlops(ReadMachine("dgx-a100").accelerator, Precision::kBf16);
}

TEST(Products, NeverBeatWhatTheAcceleratorAchieves) {
  for (const int64_t size : {64, 256, 1024, 4096, 16384}) {
    const double share = Share({size, size, size});
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 0.869);
  }
  EXPECT_GT(Share({16384, 16384, 16384}), 0.85);
  EXPECT_LT(Share({256, 256, 256}), 0.1);
}

TEST(Products, GetMoreOfThePeakTheLargerTheyAre) {
  double before = 0;
  for (const int64_t size : {128, 256, 512, 1024, 2048, 4096, 8192}) {
    const double share = Share({size, size, size});
    EXPECT_GT(share, before) << size;
    before = share;
  }
  // In each direction by itself, by whole tiles.
  EXPECT_GT(Share({4096, 4096, 4096}), Share({1024, 4096, 4096}));
  EXPECT_GT(Share({4096, 4096, 4096}), Share({4096, 1024, 4096}));
  EXPECT_GT(Share({4096, 4096, 4096}), Share({4096, 4096, 512}));
}

TEST(Products, OfVectorsAreAsFastAsMemory) {
  const MatrixProduct product{1, 8192, 8192};
  const double bytes = 2.0 * (8192.0 * 8192 + 2 * 8192);
  EXPECT_DOUBLE_EQ(Seconds(product), bytes / (2039e9 * kDefault.memory));
}

TEST(Products, OfHeadsThatDoNotAlignMissTheTensorCores) {
  const auto plain = [](int64_t head_dim) {
    return ProductSeconds({2048, 2048, head_dim, 64, false}, ReadMachine("dgx-a100").accelerator,
                          Precision::kFp16, false, kDefault);
  };
  EXPECT_GT(plain(108), 5 * plain(112));
}

TEST(Products, InEightBitsAreFasterExceptInAttention) {
  const MatrixProduct product{8192, 8192, 8192};
  EXPECT_LT(Seconds(product, "dgx-h100", Precision::kFp8), 0.7 * Seconds(product, "dgx-h100"));
  const MatrixProduct scores{4096, 4096, 128, 32, false, true, false, 0.5};
  EXPECT_DOUBLE_EQ(Seconds(scores, "dgx-h100", Precision::kFp8), Seconds(scores, "dgx-h100"));
}

TEST(Products, ByMisalignedWeightsAreSlower) {
  const Machine machine = ReadMachine("dgx-a100");
  const auto seconds = [&](Precision precision, int64_t tokens, int64_t n, int64_t k) {
    PartWork work;
    work.products = {{tokens, n, k}};
    PartSetting setting;
    setting.machine = &machine;
    setting.efficiency = &kDefault;
    setting.precision = precision;
    const PartSeconds all = SecondsOf(work, setting);
    return all.forward + all.input + all.weight;
  };
  for (const auto& [n, k] : {std::pair{4097, 4096}, {4096, 4097}, {4100, 4100}, {50257, 768}}) {
    EXPECT_GT(seconds(Precision::kBf16, 8192, n, k),
              1.3 * seconds(Precision::kBf16, 8192, n - n % 8, k - k % 8));
    EXPECT_LT(seconds(Precision::kFp32, 8192, n, k),
              1.05 * seconds(Precision::kFp32, 8192, n + 8, k + 8));
  }
  EXPECT_LT(seconds(Precision::kTf32, 8192, 4100, 4100),
            1.05 * seconds(Precision::kTf32, 8192, 4096, 4096));
  // Any number of tokens will do.
  EXPECT_LT(seconds(Precision::kBf16, 8191, 4096, 4096),
            1.05 * seconds(Precision::kBf16, 8192, 4096, 4096));
}

TEST(Collectives, AllReduceTakesAsLongAsScatterAndGather) {
  const Machine machine = ReadMachine("dgx-a100");
  const auto time = [&](CollectiveKind kind) {
    return CollectiveSeconds(kind, Bytes{1} << 30, {8, 1}, machine, kDefault);
  };
  EXPECT_NEAR(time(CollectiveKind::kAllReduce),
              time(CollectiveKind::kReduceScatter) + time(CollectiveKind::kAllGather), 2e-5);
  // 2 · 7/8 of the vector at 0.77 of 300 GB/s.
  EXPECT_NEAR(time(CollectiveKind::kAllReduce), 1.75 * 1073741824 / 231e9, 1e-4);
}

TEST(Collectives, AcrossNodesHaveTheCardsOfTheirMembersInANode) {
  const Machine machine = ReadMachine("dgx-a100");
  const auto time = [&](int members, int stride) {
    return CollectiveSeconds(CollectiveKind::kAllReduce, Bytes{1} << 30, {members, stride}, machine,
                             kDefault);
  };
  EXPECT_GT(time(8, 8), 5 * time(8, 1));    // one card each
  EXPECT_LT(time(16, 1), time(16, 8) / 4);  // all eight cards of a node
  EXPECT_EQ(time(1, 1), 0);
  EXPECT_GT(time(16, 4), time(4, 4));
}

TEST(Collectives, AreNeverSlowerOverFasterLinks) {
  Machine faster = ReadMachine("a100-ethernet");
  const Machine slow = faster;
  faster.between.bandwidth.bytes_per_second *= 2;
  faster.inside.bandwidth.bytes_per_second *= 2;
  for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                          CollectiveKind::kAllToAll, CollectiveKind::kRing}) {
    for (const int stride : {1, 2, 8}) {
      for (const int members : {2, 4, 16}) {
        const RankGroup group{members, stride};
        EXPECT_LT(CollectiveSeconds(kind, 1 << 26, group, faster, kDefault),
                  CollectiveSeconds(kind, 1 << 26, group, slow, kDefault));
      }
    }
  }
}

TEST(EfficiencyFiles, AreReadAsTheyWereWritten) {
  const std::filesystem::path file = Scratch("efficiency.json");
  Efficiency efficiency;
  efficiency.compute_factor = 1.25;
  efficiency.launch = 7e-5;
  WriteEfficiency(efficiency, file);
  EXPECT_EQ(ReadEfficiency(file), efficiency);
  WriteFile(file, R"({"memory": 0.7})");
  EXPECT_EQ(ReadEfficiency(file).memory, 0.7);
  EXPECT_EQ(ReadEfficiency(file).launch, Efficiency{}.launch);
  const auto refusal = [&](const char* text) -> std::string {
    WriteFile(file, text);
    try {
      ReadEfficiency(file);
    } catch (const Error& error) {
      return error.what();
    }
    return "was read";
  };
  EXPECT_THAT(refusal(R"({"memmory": 1})"), HasSubstr("/memmory: unknown key; the nearest known "
                                                      "one is 'memory'"));
  EXPECT_THAT(refusal(R"({"memory": 0})"), HasSubstr("/memory: 0 is not a number from 0.001 to 1"));
  EXPECT_THAT(refusal(R"({"kernel": "1"})"), HasSubstr("\"1\" is not a number from 0 to 10"));
  for (const EfficiencyTerm& term : EfficiencyTerms()) {
    const auto of = [&](double value) {
      return refusal(fmt::format(R"({{"{}": {}}})", term.name, value).c_str());
    };
    EXPECT_EQ(of(term.least), "was read") << term.name;
    EXPECT_EQ(of(term.most), "was read") << term.name;
    for (const double beyond : {term.least - 0.0001, term.most * 1.001, -1e300, 1e300}) {
      EXPECT_THAT(of(beyond), HasSubstr(fmt::format("/{}: ", term.name))) << beyond;
    }
  }
}

}  // namespace
}  // namespace pipelag
