// Presets of machines, and files of the same form.
#include "models/hardware/machine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "models/error.h"
#include "models/file.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::string Refusal(const std::string& name_or_file) {
  try {
    ReadMachine(name_or_file);
  } catch (const Error& error) {
    return error.what();
  }
  return "was read";
}

constexpr const char* kFile = R"({
  "name": "mine",
  "accelerator": {"name": "X", "peak_tflops": {"bf16": 100}, "achievable": 0.8,
                  "multiprocessors": 100, "memory": "80GiB", "memory_bandwidth": "2TB/s",
                  "source": "none"},
  "gpus_per_node": 4, "inside": {"bandwidth": "100GB/s", "latency": "5us"},
  "cards_per_node": 2, "between": {"bandwidth": "25GB/s", "latency": "10us"}, "source": "none"})";

class MachineFile : public testing::Test {
 protected:
  std::string Written(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    if (at != std::string::npos) text.replace(at, from.size(), to);
    const std::string file = Scratch("machine.json");
    WriteFile(file, text);
    return file;
  }
};

TEST(Machines, EveryPresetIsWhole) {
  const std::vector<std::string> names = MachineNames();
  for (const char* needed :
       {"dgx-v100", "dgx-a100-40", "dgx-a100", "dgx-h100", "hgx-h200", "hgx-h800", "dgx-b200",
        "gb200-nvl72", "mi300x", "l40s", "rtx4090", "a100-ethernet"}) {
    EXPECT_THAT(names, Contains(needed));
  }
  for (const std::string& name : names) {
    const Machine machine = ReadMachine(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_FALSE(machine.source.empty()) << name;
    EXPECT_FALSE(machine.accelerator.source.empty()) << name;
    EXPECT_GT(machine.accelerator.achievable, 0.3) << name;
    EXPECT_LE(machine.accelerator.achievable, 1) << name;
    EXPECT_GT(machine.accelerator.memory, Bytes{10} << 30) << name;
    EXPECT_GE(PeakFlops(machine.accelerator, Precision::kFp16), 1e14) << name;
    // Messages between nodes are never the nearer ones.
    EXPECT_GE(machine.between.latency, machine.inside.latency) << name;
    EXPECT_EQ(ClusterOf(machine, 2).ranks(), 2 * machine.gpus_per_node) << name;
  }
}

TEST(Machines, AnUnknownNameLeadsToTheNearest) {
  EXPECT_THAT(Refusal("dgx-h10"), HasSubstr("'dgx-h100'"));
}

TEST(Machines, PeaksAreOfThePrecision) {
  const Accelerator v100 = ReadMachine("dgx-v100").accelerator;
  EXPECT_DOUBLE_EQ(PeakFlops(v100, Precision::kFp16), 125e12);
  EXPECT_THROW(PeakFlops(v100, Precision::kFp8), Error);
  EXPECT_EQ(ParsePrecision("fp8"), Precision::kFp8);
  EXPECT_EQ(PrecisionName(Precision::kTf32), "tf32");
  EXPECT_THROW(ParsePrecision("fp9"), Error);
}

TEST_F(MachineFile, IsReadAsAPresetIs) {
  const Machine machine = ReadMachine(Written(kFile, "mine", "yours"));
  EXPECT_EQ(machine.name, "yours");
  EXPECT_EQ(machine.gpus_per_node, 4);
  EXPECT_EQ(machine.between.bandwidth, ParseBandwidth("25GB/s"));
}

TEST_F(MachineFile, NoFigureIsBeyondWhatCanBeReckonedWith) {
  const auto refusal = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(std::string(kFile).find(from), std::string::npos) << from;
    const std::string error = Refusal(Written(kFile, from, to));
    EXPECT_THAT(error, HasSubstr("machine.json: /")) << to;
    const std::string key = error.substr(error.find(": /"), error.rfind(": ") - error.find(": /"));
    EXPECT_EQ(error.find(key), error.rfind(key)) << error << ": the place is named once";
  };
  for (const char* peak : {"1e300", "1e5", "1e-9", "0", "-1", "\"100\""}) {
    refusal("\"bf16\": 100", fmt::format("\"bf16\": {}", peak));
  }
  for (const char* share : {"0", "1e-300", "2", "null"}) {
    refusal("\"achievable\": 0.8", fmt::format("\"achievable\": {}", share));
  }
  for (const char* rate : {"1B/s", "9000000000GB/s"}) refusal("100GB/s", rate);
  for (const char* memory : {"\"0\"", "\"1B\"", "\"8000000GiB\"", "80", "\"80\""}) {
    refusal("\"memory\": \"80GiB\"", fmt::format("\"memory\": {}", memory));
  }
  refusal("\"latency\": \"5us\"", "\"latency\": \"2s\"");
}

TEST_F(MachineFile, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_THAT(Refusal(Written(kFile, "\"memory\":", "\"memmory\":")),
              HasSubstr("machine.json: /accelerator/memmory: unknown key; the nearest known one "
                        "is 'memory'"));
  EXPECT_THAT(Refusal(Written(kFile, "\"achievable\": 0.8,", "")),
              HasSubstr("/accelerator/achievable: is missing"));
  EXPECT_THAT(Refusal(Written(kFile, "\"100GB/s\"", "\"100GB\"")), HasSubstr("/inside/bandwidth"));
  EXPECT_THAT(Refusal(Written(kFile, "\"100GB/s\"", "\"unlimited\"")),
              HasSubstr("/inside/bandwidth: a machine's bandwidth has a limit"));
  EXPECT_THAT(Refusal(Written(kFile, "\"achievable\": 0.8", "\"achievable\": 1.8")),
              HasSubstr("/accelerator/achievable: 1.8 is not a number from 0.01 to 1"));
  EXPECT_THAT(Refusal(Written(kFile, "\"gpus_per_node\": 4", "\"gpus_per_node\": 0")),
              HasSubstr("/gpus_per_node: expected a whole number from 1"));
  EXPECT_THAT(Refusal(Written(kFile, "\"bf16\": 100", "\"bf17\": 100")),
              HasSubstr("/accelerator/peak_tflops/bf17"));
}

}  // namespace
}  // namespace pipelag
