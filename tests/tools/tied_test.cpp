// `--tied` from the outside: trained, resumed, written out, simulated, and refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kSmall =
    " --layers 4 --hidden 16 --heads 2 --sequence 8 --microbatch-size 2 --validation-microbatches 2"
    " --microbatches 4 ";

json Done(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return json::parse(outcome.out, nullptr, false);
}

json Trained(const Workplace& place, const std::string& flags) {
  return Done(place.Pipelag("run --format json" + std::string(kSmall) + flags));
}

std::string Digest(const Workplace& place, const std::string& flags) {
  return Trained(place, flags).at("weights_sha256").get<std::string>();
}

TEST(Tied, TrainsTheSameNetworkOnAnyRanks) {
  const Workplace place;
  place.Write("tied.json", R"({"tied": true, "steps": 10})");
  const std::string serial = Digest(place, "--tied --steps 10 --backend serial --delay 0");
  EXPECT_NE(Digest(place, "--steps 10 --backend serial --delay 0"), serial);
  EXPECT_EQ(Digest(place, "--tied --steps 10 --schedule 1f1b --ranks 3"), serial);
  EXPECT_EQ(Digest(place, "tied.json --schedule interleaved-1f1b --ranks 2"), serial);
  EXPECT_EQ(Digest(place, "tied.json --schedule 2bw --ranks 4 --clip-norm 0.5"),
            Digest(place, "tied.json --backend serial --delay 1 --ranks 2 --clip-norm 0.5"));
  // Chunks whose replicas meet after the exchange have no part in it.
  const std::string chunks =
      "tied.json --schedule 2bw --ranks 2 --chunks 2 --replicas 2 --clip-norm 0.3";
  EXPECT_EQ(Digest(place, chunks), Digest(place, "--backend serial " + chunks));
  const json tied = Trained(place, "--tied --steps 2 --schedule 1f1b --ranks 2");
  const json untied = Trained(place, "--steps 2 --schedule 1f1b --ranks 2");
  EXPECT_EQ(untied.at("parameters").get<int>() - tied.at("parameters").get<int>(), 256 * 16);
  EXPECT_THAT(
      place.Pipelag("run --tied --steps 2 --schedule 1f1b --ranks 2" + std::string(kSmall)).out,
      HasSubstr("16 channels, tied head ("));
}

TEST(Tied, GoesOnFromACheckpointAndOutToFiles) {
  const Workplace place;
  const std::string way = "--tied --warmup-steps 1 --schedule 1f1b ";
  const std::string whole = Digest(place, way +
                                              "--steps 8 --ranks 2 --checkpoint kept "
                                              "--checkpoint-every 4 --export model.bin");
  EXPECT_EQ(Digest(place, way + "--steps 8 --ranks 4 --resume kept/step-00000004"), whole);
  // The weights alone, in either form, and out again.
  for (const char* form : {"bin", "safetensors"}) {
    const std::string name = std::string("again.") + form;
    Digest(place, way + "--steps 1 --ranks 2 --learning-rate 0 --init model.bin --export " + name);
    const std::string from = "--steps 2 --ranks 3 --init ";
    EXPECT_EQ(Digest(place, way + from + name), Digest(place, way + from + "model.bin"));
  }
  const Outcome untied =
      place.Pipelag("run --warmup-steps 1 --schedule 1f1b --steps 8 --ranks 2 --resume kept" +
                    std::string(kSmall));
  EXPECT_EQ(untied.exit_code, 2);
  EXPECT_NE(untied.err, "");
}

TEST(Tied, CostsItsExchangeInASimulation) {
  const Workplace place;
  const auto makespan = [&](const std::string& flags) {
    return Done(place.Pipelag("simulate --format json --microbatches 8 " + flags))
        .at("makespan_ns")
        .get<int64_t>();
  };
  const std::string plain = "--schedule 1f1b --ranks 4 --forward 1ms --backward 2ms ";
  EXPECT_EQ(makespan(plain), 33'000'000);
  EXPECT_EQ(makespan(plain + "--tied"), 33'000'000);
  // Stage 0 ends last, and only then the exchange begins.
  EXPECT_EQ(makespan(plain + "--tied --tied-exchange 5ms"), 38'000'000);
  // Both ends on one rank: by pointer.
  const std::string folded =
      "--schedule zb-v --ranks 4 --forward 1ms --backward-input 1ms --backward-weight 1ms ";
  EXPECT_EQ(makespan(folded + "--tied --tied-exchange 5ms"), makespan(folded));
  // Without a flush it fits the slack: a step is as long as its work.
  const json bw = Done(place.Pipelag(
      "simulate --format json --schedule 2bw --ranks 4 --microbatches 8 --forward 1ms "
      "--backward 2ms --steps 40 --tied --tied-exchange 2ms"));
  EXPECT_EQ(bw.at("step_time_ns"), 24'000'000);
  for (const json& stage : bw.at("per_stage")) EXPECT_EQ(stage.at("weight_versions"), 2);
  // With a machine the model of costs knows how long it takes.
  const std::string machine = "--schedule 1f1b --ranks 4 --machine dgx-a100 --model ";
  EXPECT_GT(makespan(machine + "gpt2-xl --tied"), makespan(machine + "gpt2-xl"));
  EXPECT_EQ(makespan(machine + "gpt2-xl --tied --tied-exchange 0ms"),
            makespan(machine + "gpt2-xl"));
}

TEST(Tied, StandsInTheScheduleAndItsFiles) {
  const Workplace place;
  const Outcome drawn =
      place.Pipelag("schedule --schedule 1f1b --ranks 2 --microbatches 4 --tied --export tied.csv");
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
  const std::string run = "--steps 4 --schedule ";
  EXPECT_EQ(Digest(place, "--tied " + run + "tied.csv"),
            Digest(place, "--tied " + run + "1f1b --ranks 2"));
  // A file of another order cannot be made to fit.
  place.Pipelag("schedule --schedule 1f1b --ranks 2 --microbatches 4 --export plain.csv");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--tied --schedule plain.csv", "its order is fixed"},
      {"--schedule tied.csv", "the network's head is its own"},
      {"--tied --schedule pipedream --ranks 2", "pipedream cannot wait for a tied embedding"},
      {"--tied --schedule paci --ranks 2", "paci cannot wait for a tied embedding"},
      {"--tied --backend serial --delay 1,0", "different numbers of updates"}};
  for (const auto& [flags, expected] : cases) {
    const Outcome outcome = place.Pipelag("run" + std::string(kSmall) + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << flags;
    EXPECT_EQ(outcome.out, "") << flags;
  }
  const Outcome exchange =
      place.Pipelag("simulate --schedule 1f1b --ranks 2 --microbatches 4 --tied-exchange 1ms");
  EXPECT_EQ(exchange.exit_code, 2);
  EXPECT_THAT(exchange.err, HasSubstr("--tied-exchange: needs --tied"));
  const Outcome own = place.Pipelag(
      "simulate --schedule 1f1b --ranks 2 --microbatches 4 --machine dgx-a100 --model Llama-2-7b "
      "--tied");
  EXPECT_EQ(own.exit_code, 2);
  EXPECT_THAT(own.err, HasSubstr("has a head of its own"));
  EXPECT_EQ(place
                .Pipelag("run --compute emulated --schedule 1f1b,dualpipe --ranks 2 "
                         "--microbatches 4 --forward 1ms --backward 1ms --backward-input 1ms "
                         "--backward-weight 1ms --tied --clip-norm 1")
                .exit_code,
            0);
  const Outcome converge = place.Pipelag(
      "converge --tied --delay 1:0 --steps 3 --layers 2 --hidden 16 --heads 2 --sequence 8 "
      "--microbatch-size 2 --optimizer sgd --output runs");
  EXPECT_EQ(converge.exit_code, 2);
  EXPECT_THAT(converge.err, HasSubstr("tied embedding"));
}

}  // namespace
}  // namespace pipelag
