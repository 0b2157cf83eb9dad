// Every flag that changes a schedule or what it meets, by what it must do to the figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Variants : public testing::Test {
 protected:
  json Run(const std::string& command) {
    const Outcome outcome = place_.Pipelag(command + " --format json");
    EXPECT_EQ(outcome.exit_code, 0) << command << ": " << outcome.err;
    return json::parse(outcome.out);
  }
  json Simulate(const std::string& flags) { return Run("simulate " + flags); }
  json StepTime(const std::string& flags) { return Simulate(flags).at("step_time_exact"); }
  int64_t Makespan(const std::string& flags) { return Simulate(flags).at("makespan_ns"); }
  static std::vector<json> Column(const json& rows, const char* key) {
    std::vector<json> values;
    for (const json& row : rows) values.push_back(row.at(key));
    return values;
  }
  std::vector<json> InFlight(const std::string& flags) {
    return Column(Simulate(flags).at("per_rank"), "peak_in_flight");
  }
  void ExpectRefused(const std::string& command, const std::string& why) {
    const Outcome outcome = place_.Pipelag(command);
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr(why)) << command;
  }

  const Workplace place_;
};

constexpr char kFour[] = " --ranks 4 --microbatches 8 --forward 1us --backward 2us ";
constexpr char kSplit[] =
    " --ranks 4 --microbatches 8 --forward 1us --backward-input 1us --backward-weight 1us ";

TEST_F(Variants, WarmUp) {
  const std::string base =
      "--schedule 2bw --ranks 8 --microbatches 32 --forward 1us --backward 2us --p2p-latency 2us ";
  EXPECT_EQ(StepTime(base + "--warmup-slope 2"), json({332800, 3}));
  EXPECT_EQ(StepTime(base + "--warmup-slope 3"), json({96000, 1}));
  EXPECT_EQ(StepTime(base + "--warmup 21,18,15,12,9,6,3,0"), json({96000, 1}));
  // One less on the first stage no longer hides the latency.
  EXPECT_GT(Simulate(base + "--warmup 16,14,12,10,8,6,4,0").at("step_time_ns"), 96000);
  const json proposed = Simulate(base).at("latency_hidden_by");
  EXPECT_EQ(proposed.at("slope"), 3);
  std::string list;
  for (const json& warm_up : proposed.at("warmup")) {
    if (!list.empty()) list += ',';
    list += warm_up.dump();
  }
  EXPECT_EQ(StepTime(base + "--warmup " + list), json({96000, 1}));
  EXPECT_THAT(InFlight(std::string("--schedule 1f1b --warmup-slope 2") + kFour),
              ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(InFlight(std::string("--schedule eager-1f1b") + kFour), ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(InFlight(std::string("--schedule 1f1b --warmup 5,3,2,0") + kFour),
              ElementsAre(6, 4, 3, 1));
  for (const char* command : {"schedule", "simulate"}) {
    const std::string start = std::string(command) + " --ranks 4 --microbatches 8 --schedule ";
    ExpectRefused(start + "1f1b --warmup 1,2", "--warmup has 2 entries, but there are 4 ranks");
    ExpectRefused(start + "1f1b --warmup 3,2,1,0 --warmup-slope 2", "give one of them");
    ExpectRefused(start + "zb-h1 --warmup-slope 2", "--warmup-slope: zb-h1 has no use for it");
  }
}

TEST_F(Variants, ChunksAndGroups) {
  const std::string start = "--schedule interleaved-1f1b ";
  EXPECT_EQ(StepTime(start + "--chunks 2 --p2p-latency 100ns" + kFour), json({58400, 1}));
  // 2(p − 1 − r) + (v − 1)N + 1 chunks.
  EXPECT_THAT(InFlight(start + "--chunks 3" + kFour), ElementsAre(15, 13, 11, 9));
  EXPECT_THAT(InFlight(start + "--chunks 2 --group 8" + kFour), ElementsAre(15, 13, 11, 9));
  EXPECT_THAT(InFlight(start + "--group flexible --ranks 4 --microbatches 10"),
              ElementsAre(12, 10, 8, 6));
  EXPECT_EQ(Simulate(start + "--chunks 1" + kFour).at("stages"), 4);
  ExpectRefused("schedule --schedule interleaved-1f1b --group 3 --ranks 4 --microbatches 9",
                "at least 4 micro-batches");
  ExpectRefused("schedule --schedule interleaved-1f1b --ranks 4 --microbatches 9", "whole groups");
  ExpectRefused("schedule --schedule gpipe --ranks 4 --microbatches 9 --group 4", "--group: gpipe");
}

TEST_F(Variants, ActivationsInSharesOfANetworkCutByRanks) {
  const auto shares = [&](const std::string& flags) {
    return Column(Simulate(flags).at("per_rank"), "peak_in_flight_shares");
  };
  EXPECT_THAT(shares(std::string("--schedule 1f1b") + kFour), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(shares(std::string("--schedule interleaved-1f1b") + kFour),
              ElementsAre(5.5, 4.5, 3.5, 2.5));
  EXPECT_THAT(shares(std::string("--schedule zb-v") + kSplit), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(shares(std::string("--schedule dualpipe") + kSplit), ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(shares(std::string("--schedule dualpipe-v") + kSplit),
              ElementsAre(4.5, 4.5, 4.5, 4.5));
  const Outcome several =
      place_.Pipelag("simulate --schedule 1f1b,zb-v --ranks 4 --microbatches 8");
  EXPECT_THAT(several.out, HasSubstr("shares\n"));
  EXPECT_THAT(place_.Pipelag("simulate --schedule zb-v --ranks 4 --microbatches 8").out,
              HasSubstr("a share is those of 1/4 of the network"));
  const json of_schedule = Run("schedule --schedule interleaved-1f1b --ranks 4 --microbatches 8");
  EXPECT_THAT(Column(of_schedule.at("per_rank"), "peak_in_flight"), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(Column(of_schedule.at("per_rank"), "peak_in_flight_shares"),
              ElementsAre(5.5, 4.5, 3.5, 2.5));
  // A trace of both directions counts no stage twice either.
  ASSERT_EQ(place_.Pipelag("simulate --schedule dualpipe --ranks 4 --microbatches 8 --trace t.json")
                .exit_code,
            0);
  const json analyzed = Run("analyze t.json");
  EXPECT_EQ(analyzed.at("stages"), 4);
  EXPECT_THAT(Column(analyzed.at("per_rank"), "peak_in_flight_shares"), ElementsAre(5, 5, 5, 5));
}

TEST_F(Variants, Body) {
  const std::string start = "--schedule 2bw ";
  EXPECT_EQ(StepTime(start + "--body zb-h1 --p2p-latency 600ns" + kSplit), json({25200, 1}));
  EXPECT_EQ(StepTime(start + "--body interleaved-1f1b --p2p-latency 2us" + kFour),
            json({59000, 1}));
  EXPECT_EQ(StepTime(start + "--chunks 2 --p2p-latency 1us" + kFour), json({48000, 1}));
  const json delays = Run("schedule --schedule pipedream --body zb-h2 --ranks 4 --microbatches 2");
  EXPECT_THAT(Column(delays.at("per_stage"), "gradient_delay"), ElementsAre(3, 3, 3, 3));
  ExpectRefused("schedule --schedule 1f1b --ranks 4 --microbatches 8 --body zb-h1", "--body: 1f1b");
  ExpectRefused("schedule --schedule paci --ranks 4 --microbatches 8 --body gpipe", "gpipe");
}

TEST_F(Variants, VerticalSync) {
  const json synced =
      Run("schedule --schedule pipedream --ranks 4 --microbatches 1 --vertical-sync");
  EXPECT_EQ(synced.at("policy"), "vertical-sync");
  EXPECT_THAT(Column(synced.at("per_stage"), "gradient_delay"), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(Column(synced.at("per_stage"), "weight_versions"), ElementsAre(4, 4, 4, 4));
  ExpectRefused("schedule --schedule 2bw --ranks 4 --microbatches 4 --vertical-sync",
                "--vertical-sync: 2bw has no use for it");
}

TEST_F(Variants, MemoryLimit) {
  const std::string start = std::string("--schedule zb-auto") + kSplit;
  int64_t last = std::numeric_limits<int64_t>::max();
  for (const double limit : {1.5, 2.0, 4.0}) {
    const json result = Simulate(start + "--memory-limit " + std::to_string(limit));
    for (const json& rank : result.at("per_rank")) {
      EXPECT_LE(rank.at("peak_in_flight_shares").get<double>(), limit);
    }
    EXPECT_LE(result.at("makespan_ns"), last);
    last = result.at("makespan_ns");
  }
  ExpectRefused("simulate " + start + "--memory-limit 0.5", "0.5");
  ExpectRefused("simulate " + start + "--memory-limit 0", "--memory-limit: must be positive");
  ExpectRefused("simulate --schedule zb-v --memory-limit 2" + std::string(kSplit), "zb-v");
}

TEST_F(Variants, Overlap) {
  const std::string dualpipe = std::string("--schedule dualpipe") + kSplit;
  EXPECT_EQ(StepTime(dualpipe + "--overlap 2600ns"), json({24400, 1}));
  EXPECT_EQ(Simulate(dualpipe + "--overlap 2600ns").at("bubble").at("idle_of_makespan"), 4.0 / 61);
  EXPECT_EQ(Simulate(dualpipe + "--overlap 2600ns"),
            Simulate(dualpipe + "--overlap 2600ns,2600ns,2600ns,2600ns"));
  EXPECT_EQ(Simulate(dualpipe), Simulate(dualpipe + "--overlap 3us"));
  EXPECT_GT(Makespan(dualpipe + "--overlap 2600ns,2600ns,2700ns,2600ns"), 24400);
  EXPECT_EQ(
      StepTime("--schedule dualpipe-v --p2p-latency 100ns --overlap 3us" + std::string(kSplit)),
      json({55600, 1}));
  ExpectRefused("simulate " + dualpipe + "--overlap 1us,2us", "--overlap has 2 entries");
  ExpectRefused("simulate --schedule 1f1b,gpipe --overlap 2us" + std::string(kFour),
                "--overlap: no F overlaps a B in 1f1b, gpipe");
  EXPECT_EQ(place_.Pipelag("simulate --schedule 1f1b,dualpipe --overlap 2us" + std::string(kSplit))
                .exit_code,
            0);
  place_.Write("job.json", R"({"schedule": "dualpipe", "ranks": 4, "microbatches": 8,
      "forward": "1us", "backward-input": "1us", "backward-weight": "1us",
      "overlap": ["2600ns", "2600ns", "2600ns", "2600ns"]})");
  EXPECT_EQ(StepTime("job.json"), json({24400, 1}));
}

TEST_F(Variants, Memory) {
  const json memory = Simulate(
                          "--schedule zb-h1 --ranks 2 --microbatches 2 --forward 1us "
                          "--backward-input 1us --backward-weight 1us --weight-bytes 100KiB "
                          "--accumulator-bytes 50KiB --optimizer-bytes 200KiB "
                          "--activation-memory 10KiB --freed-at-input 4KiB")
                          .at("memory");
  for (const json& rank : memory) {
    EXPECT_EQ(rank.at("weights_bytes"), 100 << 10);
    EXPECT_EQ(rank.at("gradients_bytes"), 50 << 10);
    EXPECT_EQ(rank.at("optimizer_bytes"), 200 << 10);
  }
  // Rank 1 holds its second activation when the first has been freed for its part.
  EXPECT_THAT(Column(memory, "peak_activations_bytes"), ElementsAre(20 << 10, 16 << 10));
  EXPECT_THAT(Column(memory, "peak_bytes"), ElementsAre(370 << 10, 366 << 10));
}

TEST_F(Variants, Cluster) {
  place_.Write("four.json", R"({"name": "four", "gpus": ["a", "b", "c", "d"], "links": [
      {"from": "a", "to": "b", "bandwidth": "1GB/s", "latency": "1us"},
      {"from": "a", "to": "c", "bandwidth": "1GB/s", "latency": "1us"},
      {"from": "b", "to": "d", "bandwidth": "1GB/s", "latency": "1us"},
      {"from": "c", "to": "d", "bandwidth": "1GB/s", "latency": "1us"}]})");
  const std::string base =
      "--schedule 1f1b --ranks 2 --microbatches 2 --forward 1us --backward 2us --cluster "
      "four.json ";
  EXPECT_EQ(Makespan(base), 9000 + 2000);
  EXPECT_EQ(Makespan(base + "--activation-bytes 500B"), 9000 + 3000);
  const std::string reduced = base + "--replicas 2 --gradient-bytes 10KB ";
  // A ring of two: half of the gradients each way, twice. A tree: all of them to the root and back.
  EXPECT_EQ(Makespan(reduced), 11000 + 2 * 6000);
  EXPECT_EQ(Makespan(reduced + "--reduction-algorithm ring"), 11000 + 2 * 6000);
  EXPECT_EQ(Makespan(reduced + "--reduction-algorithm tree"), 11000 + 2 * 11000);
  // No two of them share a node, so the hierarchy has one level.
  EXPECT_EQ(Makespan(reduced + "--reduction-algorithm hierarchical"), 11000 + 2 * 6000);
  const std::string wrong = "simulate --schedule 1f1b --ranks 2 --microbatches 2 ";
  ExpectRefused(wrong + "--replicas 2 --noise 0.1", "--replicas: needs --cluster");
  ExpectRefused(wrong + "--gradient-bytes 1KB", "--gradient-bytes: needs --cluster");
  ExpectRefused(wrong + "--cluster four.json --replicas 3", "the cluster four holds 4 ranks");
}

TEST_F(Variants, ReplicasThatAreAlikeNeedNoCluster) {
  const std::string one =
      "--schedule 1f1b --ranks 2 --microbatches 2 --forward 1us --backward 2us ";
  EXPECT_EQ(Makespan(one + "--replicas 3"), Makespan(one));
  EXPECT_EQ(Makespan(one + "--replicas 3 --reduction 5us"), Makespan(one) + 5000);
}

TEST_F(Variants, Cores) {
  const std::string base =
      "--schedule gpipe --ranks 2 --microbatches 2 --forward 1us --backward 2us ";
  EXPECT_EQ(Makespan(base), 9000);
  EXPECT_EQ(Makespan(base + "--cores 2"), 9000);
  EXPECT_EQ(Makespan(base + "--cores 1"), 12000);
  EXPECT_EQ(Makespan(base + "--cores 1 --replicas 2"), 24000);
  EXPECT_EQ(Makespan(base + "--cores 1 --rank-factors 1,2"), 18000);
  EXPECT_TRUE(Simulate(base + "--cores 1").at("step_time_is_mean_of_run"));
  EXPECT_FALSE(Simulate(base + "--cores 2").contains("step_time_is_mean_of_run"));
  EXPECT_THAT(place_.Pipelag("simulate " + base + "--cores 1").out, HasSubstr("the mean of this"));
  EXPECT_THAT(place_.Pipelag("sweep --format csv --grid cores=1,2 " + base).out,
              AllOf(HasSubstr("\n1,"), HasSubstr(",12000,"), HasSubstr(",9000,")));
  place_.Write("job.json", R"({"schedule": "gpipe", "ranks": 2, "microbatches": 2, "cores": 1})");
  EXPECT_EQ(Makespan("job.json"), 12'000'000);
  place_.Write("pair.json", R"({"gpus": ["a", "b"], "links": [{"from": "a", "to": "b",
                                "bandwidth": "1GB/s"}]})");
  const std::string wrong = "simulate " + base;
  ExpectRefused(wrong + "--cores 0", "--cores");
  ExpectRefused(wrong + "--cores -1", "--cores");
  ExpectRefused(wrong + "--cores half", "--cores");
  ExpectRefused(wrong + "--cores 1 --cluster pair.json", "--cores: the GPUs of --cluster");
  ExpectRefused(wrong + "--cores 1 --machine dgx-h100 --model gpt2",
                "--cores: the GPUs of --machine");
  ExpectRefused("simulate job.json --cluster pair.json", "/cores: the GPUs of --cluster");
}

TEST_F(Variants, NoiseKeyedByAction) {
  const std::string base =
      "--schedule 1f1b --ranks 2 --microbatches 2 --forward 1us --backward 2us ";
  EXPECT_EQ(Makespan(base + "--rank-factors 1,2"), 15000);
  // Every action stalls, an update too: F0 F0 B0 F1 B1 B1 U are one after the other.
  EXPECT_EQ(Makespan(base + "--stalls 1:50us"), 359000);
  EXPECT_NE(Makespan(base + "--noise 0.1 --seed 1"), Makespan(base + "--noise 0.1 --seed 2"));
  EXPECT_EQ(Makespan(base + "--noise 0.1 --seed 1"), Makespan(base + "--noise 0.1 --seed 1"));
  const json spread = Simulate(base + "--noise 0.1 --seeds 5").at("spread");
  EXPECT_EQ(spread.at("seeds"), 5);
  EXPECT_LE(spread.at("makespan_ns").at("p5"), spread.at("makespan_ns").at("p95"));
}

TEST_F(Variants, Faults) {
  const std::string base =
      "--schedule 1f1b --ranks 2 --microbatches 2 --mtbf 36000s --checkpoint-cost 10s --restart "
      "300s ";
  const json given = Simulate(base + "--checkpoint-interval 600s").at("goodput");
  EXPECT_EQ(given.at("checkpoint_interval_ns"), 600'000'000'000);
  // M = 18000 s; see sim/faults.h.
  EXPECT_NEAR(given.at("share").get<double>(), 0.9510503581775488, 1e-12);
  const json best = Simulate(base).at("goodput");
  EXPECT_EQ(best.at("checkpoint_interval_ns"), best.at("best_checkpoint_interval_ns"));
  EXPECT_GT(best.at("share"), given.at("share"));
  ExpectRefused("simulate --schedule 1f1b --ranks 2 --microbatches 2 --restart 1s", "--mtbf");
}

TEST_F(Variants, CriticalPathGoesIntoATrace) {
  const std::string base = "simulate --schedule 1f1b --ranks 2 --microbatches 2 ";
  ASSERT_EQ(place_.Pipelag(base + "--trace with.json --critical-path").exit_code, 0);
  ASSERT_EQ(place_.Pipelag(base + "--trace without.json").exit_code, 0);
  EXPECT_THAT(place_.Read("with.json"), HasSubstr("critical path"));
  EXPECT_THAT(place_.Read("without.json"), testing::Not(HasSubstr("critical path")));
  ExpectRefused(base + "--critical-path", "--trace");
}

TEST_F(Variants, SideBySideSaysWhyIdle) {
  const Outcome outcome =
      place_.Pipelag("simulate --schedule gpipe,1f1b,2bw --p2p-latency 100ns" + std::string(kFour));
  EXPECT_THAT(outcome.out, HasSubstr("\nwhy idle, over all ranks\nschedule"));
  const json results =
      Simulate("--schedule gpipe,1f1b,2bw --p2p-latency 100ns" + std::string(kFour)).at("results");
  for (const json& result : results) {
    int64_t idle = 0;
    int64_t explained = 0;
    for (const json& rank : result.at("per_rank")) idle += rank.at("idle_ns").get<int64_t>();
    for (const json& rank : result.at("idle")) {
      for (const auto& [key, value] : rank.items()) {
        if (key != "rank") explained += value.get<int64_t>();
      }
    }
    EXPECT_EQ(explained, idle);
  }
}

// What stands in a CSV takes the time that is given for it; what does not cannot be given one.
TEST_F(Variants, ReductionsOfAGivenOrder) {
  const std::string sizes = " --ranks 2 --microbatches 4";
  ASSERT_EQ(
      place_.Pipelag("schedule --schedule 1f1b --reduction 5ms --export red.csv" + sizes).exit_code,
      0);
  EXPECT_EQ(Makespan("--schedule red.csv --forward 1ms --backward 2ms --reduction 5ms"),
            Makespan("--schedule 1f1b --forward 1ms --backward 2ms --reduction 5ms" + sizes));
  place_.Write("own.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  ExpectRefused("simulate --schedule own.csv --reduction 5ms", "--reduction: own.csv has no AR");
  ExpectRefused("simulate --schedule own.csv --gradient-bytes 1MiB", "--gradient-bytes: own.csv");
}

// Nothing to be drawn to scale, and still a result.
TEST_F(Variants, ZeroTimes) {
  for (const char* rest :
       {"--p2p-latency 1ms", "--p2p-bandwidth 1MB/s --activation-bytes 1KiB", "--update 1ms", ""}) {
    const Outcome outcome = place_.Pipelag(
        std::string("simulate --schedule 2bw --ranks 4 --microbatches 8 --forward 0ms "
                    "--backward 0ms ") +
        rest);
    EXPECT_EQ(outcome.exit_code, 0) << rest << outcome.err;
  }
}

TEST_F(Variants, AMeanIsNotCalledExact) {
  const std::string run = "simulate --schedule 2bw --ranks 4 --microbatches 5 --noise 0.1";
  EXPECT_THAT(place_.Pipelag(run).out,
              AllOf(HasSubstr("the mean of this run"), Not(HasSubstr("exactly"))));
}

TEST_F(Variants, SwitchesInAJob) {
  place_.Write("job.json", R"({"schedule": "pipedream", "ranks": 4, "microbatches": 2,
                               "vertical-sync": "no"})");
  ExpectRefused("simulate job.json", "/vertical-sync: is a switch, true or false");
}

}  // namespace
}  // namespace pipelag
