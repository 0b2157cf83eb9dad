// `pipelag run`: what it prints and leaves behind, its weights against the serial reference, and
// how it ends on bad input.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

constexpr std::string_view kSmall =
    " --layers 4 --hidden 16 --heads 2 --sequence 8 --microbatch-size 2 --validation-microbatches 2"
    " --steps 20 ";

nlohmann::json Trained(const Workplace& place, const std::string& flags) {
  const Outcome outcome = place.Pipelag("run --format json" + std::string(kSmall) + flags);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out, nullptr, false);
}

std::string Digest(const Workplace& place, const std::string& flags) {
  return Trained(place, flags).at("weights_sha256").get<std::string>();
}

TEST(Run, WeightsAreThoseOfTheSerialReference) {
  const Workplace place;
  for (const char* optimizer : {"sgd", "adamw", "muon"}) {
    const std::string with = std::string(" --optimizer ") + optimizer + " --microbatches 4 ";
    const std::string synchronous = Digest(place, "--backend serial --delay 0" + with);
    const std::string delayed = Digest(place, "--backend serial --delay 1" + with);
    EXPECT_NE(synchronous, delayed);
    EXPECT_EQ(Digest(place, "--schedule 1f1b --ranks 3" + with), synchronous);
    EXPECT_EQ(Digest(place, "--schedule gpipe --ranks 4" + with), synchronous);
    EXPECT_EQ(Digest(place, "--schedule 2bw --ranks 4" + with), delayed);
    EXPECT_EQ(Digest(place, "--backend serial --schedule 2bw --ranks 2" + with), delayed);
  }
  EXPECT_EQ(Digest(place, "--schedule pipedream --ranks 3 --microbatches 1"),
            Digest(place, "--backend serial --delay 2,1,0 --microbatches 1"));
}

TEST(Run, ReplicasTrainOnOneBatch) {
  const Workplace place;
  const std::string with = " --microbatches 2 --replicas 3 ";
  const std::string by_hand = Digest(place, "--backend serial --delay 0" + with);
  EXPECT_NE(Digest(place, "--backend serial --delay 0 --microbatches 6"), by_hand);
  EXPECT_EQ(Digest(place, "--schedule gpipe --ranks 1" + with), by_hand);
  EXPECT_EQ(Digest(place, "--backend serial --schedule 1f1b --ranks 2" + with), by_hand);
  const nlohmann::json json = Trained(place, "--schedule 1f1b --ranks 2" + with);
  EXPECT_EQ(json.at("weights_sha256"), by_hand);
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_EQ(json.at("replicas"), 3);
  EXPECT_EQ(json.at("microbatches"), 2);
  EXPECT_EQ(json.at("stages"), 2);
  EXPECT_EQ(json.at("per_rank").size(), 6u);
  EXPECT_EQ(json.at("per_stage").size(), 6u);
  EXPECT_EQ(json.at("per_stage")[5].at("rank"), 5);
  // Of all replicas: 3 times 2 micro-batches of 2 sequences of 8 tokens a step.
  const double step = json.at("step_time_ns").get<double>() * 1e-9;
  EXPECT_NEAR(json.at("tokens_per_s").get<double>() * step, 3 * 2 * 2 * 8, 0.01);
  EXPECT_EQ(Digest(place, "--schedule 1f1b --ranks 2 --microbatches 4 --replicas 1"),
            Digest(place, "--schedule 1f1b --ranks 2 --microbatches 4"));
}

TEST(Run, ReplicasLogTraceAndPredict) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(
      "run --schedule 1f1b,dualpipe --ranks 2 --microbatches 4 --replicas 2 --predict-from "
      "dualpipe --traces out" +
      std::string(kSmall));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("on 2 replicas"), std::string::npos);
  EXPECT_NE(place.Read("out/side-by-side.json").find("1f1b simulated rank 3 (replica 1)"),
            std::string::npos);
  EXPECT_EQ(place.Pipelag("compare out/1f1b.measured.json out/1f1b.simulated.json").exit_code, 0);
  for (const char* trace : {"dualpipe.measured", "dualpipe.simulated"}) {
    const nlohmann::json json =
        Json(place.Pipelag(std::string("analyze --format json out/") + trace + ".json"));
    EXPECT_EQ(json.at("replicas"), 2);
    EXPECT_EQ(json.at("ranks"), 2);
    EXPECT_EQ(json.at("microbatches"), 4);
    EXPECT_EQ(json.at("per_rank").size(), 4u);
  }
  EXPECT_EQ(place
                .Pipelag("run --schedule 2bw --ranks 2 --microbatches 4 --replicas 2 --log log" +
                         std::string(kSmall))
                .exit_code,
            0);
  EXPECT_EQ(Lines(place.Read("log")), 21u);
  EXPECT_NE(place.Read("log").find("\"replicas\":2"), std::string::npos);
}

TEST(Run, TrainsALlamaThatAJobFileDescribes) {
  const Workplace place;
  place.Write("llama.json", R"({"norm": "rms", "positions": "rotary", "mlp": "swiglu", "ffn": 40,)"
                            R"( "key-value-heads": 1, "no-bias": true, "microbatches": 4})");
  const std::string serial = Digest(place, "llama.json --backend serial --delay 0");
  EXPECT_NE(Digest(place, "--microbatches 4 --backend serial --delay 0"), serial);
  EXPECT_NE(Digest(place, "llama.json --ffn 48 --backend serial --delay 0"), serial);
  EXPECT_EQ(Digest(place, "llama.json --schedule zb-h1 --ranks 2"), serial);
  EXPECT_EQ(Digest(place, "llama.json --schedule zb-h1 --ranks 2 --recompute full"), serial);
  EXPECT_EQ(Digest(place, "llama.json --schedule gpipe --ranks 4 --recompute selective"), serial);
}

TEST(Run, ReportsWhatTheContractNames) {
  const Workplace place;
  const nlohmann::json json =
      Trained(place, "--schedule 2bw --ranks 2 --microbatches 4 --trace trace.json");
  for (const char* key :
       {"schedule", "ranks", "stages", "microbatches", "steps", "makespan_ns", "step_time_ns",
        "step_time_exact", "bubble", "per_stage", "per_rank", "tokens_per_s", "final_loss",
        "validation_loss", "weights_sha256", "entropy_per_byte"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const auto& stage : json.at("per_stage")) EXPECT_EQ(stage.at("gradient_delay"), 1);
  EXPECT_EQ(json.at("per_rank").size(), 2u);
  EXPECT_EQ(json.at("per_rank")[0].at("peak_in_flight"), 2);
  for (const auto& rank : json.at("memory")) {
    EXPECT_EQ(rank.at("stash_bytes"), rank.at("weights_bytes"));
    EXPECT_GT(rank.at("peak_activations_bytes"), 0);
  }
  // Each as it changes.
  const std::string trace = place.Read("trace.json");
  for (const char* counter : {"memory", "activations in flight", "weight version of stage 1"}) {
    EXPECT_NE(trace.find(std::string(R"("ph":"C","name":")") + counter), std::string::npos);
  }
  EXPECT_GT(json.at("tokens_per_s").get<double>(), 0);
}

/// Schedules with other stages, or with halves of backwards, than the one predicted from.
TEST(Run, PredictsFromStagesMeasuredAlone) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(
      "run --schedule 1f1b,zb-h1,zb-v,interleaved-1f1b,dualpipe --ranks 2 --microbatches 4 "
      "--predict-from 1f1b --clip-norm 1 --warm-up 1 --format json" +
      std::string(kSmall));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto results = nlohmann::json::parse(outcome.out).at("results");
  ASSERT_EQ(results.size(), 5u);
  for (const auto& result : results) {
    EXPECT_GT(result.at("predicted").at("step_time_ns"), 0) << result.at("schedule");
  }
  // From one with two directions, whole backwards and halves, too.
  const Outcome both = place.Pipelag(
      "run --schedule 1f1b,zb-v,dualpipe --ranks 2 --microbatches 4 --predict-from dualpipe" +
      std::string(kSmall));
  EXPECT_EQ(both.exit_code, 0) << both.err;
}

/// A job file serves simulations on a cluster as well.
TEST(Run, ReplicasOfAJobWithACluster) {
  const Workplace place;
  place.Write("job.json", R"({"schedule": "1f1b", "ranks": 2, "microbatches": 2, "replicas": 2,
                              "steps": 2, "hidden": 16, "heads": 2, "cluster": "none.json"})");
  const Outcome outcome = place.Pipelag("run job.json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Run, SeriesPredictsAndLeavesItsTraces) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(
      "run --schedule gpipe,1f1b,2bw --ranks 2 --microbatches 4 --repeat 2 --predict-from 1f1b "
      "--traces out --loss loss.csv" +
      std::string(kSmall));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("predicted"), std::string::npos);
  for (const char* name : {"gpipe", "1f1b", "2bw"}) {
    const std::string measured = std::string("out/") + name + ".measured.json";
    const std::string simulated = std::string("out/") + name + ".simulated.json";
    const Outcome compared = place.Pipelag("compare " + measured + ' ' + simulated);
    EXPECT_EQ(compared.exit_code, 0) << compared.err;
  }
  EXPECT_EQ(place.Pipelag("calibrate out/2bw.measured.json -o again.json").exit_code, 0);
  EXPECT_NE(place.Read("out/side-by-side.json").find("1f1b simulated rank 1"), std::string::npos);
  // A header and a line per schedule and step.
  EXPECT_EQ(Lines(place.Read("loss.csv")), 61u);
  EXPECT_EQ(place
                .Pipelag("simulate --schedule gpipe --ranks 2 --microbatches 4 --costs "
                         "out/costs.json")
                .exit_code,
            0);
}

TEST(Run, TrainsOnAFile) {
  const Workplace place;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the same words again and again, ";
  place.Write("text.txt", text);
  const nlohmann::json json =
      Trained(place, "--schedule 1f1b --ranks 2 --microbatches 4 --data text.txt");
  EXPECT_FALSE(json.contains("entropy_per_byte"));
  EXPECT_LT(json.at("validation_loss").get<double>(), 5.5);
}

/// Under a limit that is lower than most.
TEST(Run, TrainsOnManyFiles) {
  const Workplace place;
  std::string names;
  for (int i = 0; i < 100; ++i) {
    const std::string name = std::to_string(i);
    place.Write(name, "a few words, ");
    names += (i == 0 ? "" : ",") + name;
  }
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit few{64, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const Outcome outcome = place.Pipelag("run --schedule 1f1b --ranks 2 --microbatches 4 --data " +
                                        names + std::string(kSmall));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Run, CorrectionsOnThreadsAreThoseOfTheSerialReference) {
  const Workplace place;
  const std::string with = " --optimizer muon --muon-aux-learning-rate 0.001 --microbatches 4 ";
  const std::string corrected = " --correction error-feedback" + with;
  EXPECT_EQ(Digest(place, "--schedule 2bw --ranks 2" + corrected),
            Digest(place, "--backend serial --delay 1" + corrected));
  EXPECT_NE(Digest(place, "--backend serial --delay 1" + with),
            Digest(place, "--backend serial --delay 1" + corrected));
  EXPECT_EQ(Digest(place, "--backend serial --delay 1" + with),
            Digest(place, "--backend serial --delay 1 --correction-strength 0" + corrected));
}

TEST(Run, SaysThatItDiverged) {
  const Workplace place;
  const std::string with = " --optimizer sgd --learning-rate 1e5 --microbatches 4 ";
  for (const char* how : {"--backend serial --delay 1", "--schedule 2bw --ranks 2"}) {
    const nlohmann::json json = Trained(place, how + with);
    EXPECT_TRUE(json.contains("diverged")) << how;
    EXPECT_FALSE(json.contains("final_loss") || json.contains("weights_sha256")) << how;
  }
}

TEST(Run, ThatDivergedBeforeAnyUpdateHadNoDelay) {
  const Workplace place;
  const std::string run =
      "run --schedule 1f1b --ranks 2 --optimizer sgd --learning-rate 1e5 --microbatches 4 "
      "--warm-up 0 --steps 20 ";
  const nlohmann::json json = nlohmann::json::parse(
      place.Pipelag(run + "--checkpoint kept --checkpoint-every 1 --format json").out);
  const auto diverged = json.at("diverged").get<int64_t>();
  const Outcome again = place.Pipelag(run + fmt::format("--resume kept/step-{:08}", diverged - 1));
  EXPECT_THAT(again.out, testing::HasSubstr(fmt::format("at step {}", diverged)));
  EXPECT_THAT(again.out, testing::HasSubstr(" -  "));
  EXPECT_THAT(again.out, testing::Not(testing::HasSubstr("-1")));
}

TEST(Run, TrainsEveryKnownSchedule) {
  const Workplace place;
  const nlohmann::json list =
      nlohmann::json::parse(place.Pipelag("list --format json").out).at("schedules");
  EXPECT_GE(list.size(), 14u);
  for (const auto& entry : list) {
    const auto name = entry.at("name").get<std::string>();
    const std::string sizes = " --ranks 2 --microbatches 4 --schedule " + name;
    const nlohmann::json threads = Trained(place, sizes);
    EXPECT_EQ(threads.at("weights_sha256"), Digest(place, "--backend serial" + sizes)) << name;
    EXPECT_EQ(threads.at("stages"), name == "dualpipe" ? 2 : threads.at("per_stage").size());
  }
}

TEST(Run, EmulatedIsHeldAgainstItsSimulation) {
  const Workplace place;
  const std::string job =
      "--schedule 1f1b,dualpipe --ranks 4 --microbatches 8 --forward 1ms,1ms,2ms,1ms --backward "
      "2ms "
      "--backward-input 1ms --backward-weight 1ms --update 500us --activation-bytes 64KiB "
      "--p2p-latency 100us";
  const Outcome outcome =
      place.Pipelag("run --compute emulated --repeat 3 --traces out --format json " + job);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto results = nlohmann::json::parse(outcome.out).at("results");
  ASSERT_EQ(results.size(), 2u);
  for (const auto& result : results) {
    EXPECT_EQ(result.at("stages"), 4);
    EXPECT_EQ(result.at("steps"), 1);
    EXPECT_EQ(result.at("repetitions"), 3);
    EXPECT_GE(result.at("makespan_ns"), result.at("predicted").at("makespan_ns"));
    EXPECT_FALSE(result.contains("weights_sha256"));
  }
  const auto simulated = nlohmann::json::parse(place.Pipelag("simulate --format json " + job).out);
  EXPECT_EQ(results[0].at("predicted").at("makespan_ns"),
            simulated.at("results")[0].at("makespan_ns"));
  EXPECT_EQ(
      place.Pipelag("compare out/dualpipe.measured.json out/dualpipe.simulated.json --warm-up 0")
          .exit_code,
      0);
  EXPECT_NE(place.Pipelag("run --compute emulated " + job).out.find("simulated"),
            std::string::npos);
}

TEST(Run, BusyIsHeldAgainstTheSimulationOfItsCores) {
  const Workplace place;
  const std::string job =
      "--schedule 1f1b --ranks 4 --microbatches 4 --forward 1ms --backward 2ms --cores 1 ";
  const nlohmann::json json = Json(place.Pipelag("run --compute busy --format json " + job));
  EXPECT_EQ(json.at("cores"), 1);
  EXPECT_EQ(json.at("predicted").at("makespan_ns"), 4 * 4 * 3'000'000);
  EXPECT_EQ(Json(place.Pipelag("simulate --format json " + job)).at("makespan_ns"),
            json.at("predicted").at("makespan_ns"));
  EXPECT_NE(place.Pipelag("run --compute busy " + job).out.find("busy on 1 core, on 4 threads"),
            std::string::npos);
  place.Write("job.json", R"({"schedule": "1f1b", "ranks": 2, "microbatches": 2, "cores": 70000})");
  for (const auto& [flags, expected] : std::vector<std::pair<std::string, std::string>>{
           {"job.json", "job.json: /cores: of the 70000 cores asked for, this process may use"},
           {"job.json --cores 50000", "--cores: of the 50000 cores asked for"},
           {"job.json --cores 0", "--cores"}}) {
    const Outcome outcome = place.Pipelag("run --compute busy " + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_NE(outcome.err.find(expected), std::string::npos) << flags << ": " << outcome.err;
  }
  // Of the others it is none of their business, as far as they are not asked for it outright.
  EXPECT_EQ(place.Pipelag("run --compute emulated job.json").exit_code, 0);
}

TEST(Run, EmulatedReplicasReduceInTheTimeGiven) {
  const Workplace place;
  const std::string job =
      "--schedule 1f1b --ranks 2 --microbatches 4 --forward 1ms --backward 2ms --replicas 2 "
      "--reduction 3ms --format json ";
  const nlohmann::json json = Json(place.Pipelag("run --compute emulated " + job));
  EXPECT_EQ(json.at("replicas"), 2);
  EXPECT_EQ(json.at("per_rank").size(), 4u);
  EXPECT_EQ(json.at("predicted").at("makespan_ns"), 5 * 3'000'000 + 3'000'000);
  EXPECT_EQ(Json(place.Pipelag("simulate " + job)).at("makespan_ns"),
            json.at("predicted").at("makespan_ns"));
  EXPECT_GE(json.at("makespan_ns"), json.at("predicted").at("makespan_ns"));
}

TEST(Run, BadInputEndsWithOneSentence) {
  const Workplace place;
  place.Write("short.txt", "too short");
  place.Write("empty.txt", "");
  const std::string good = "--schedule 1f1b --ranks 2 --microbatches 2 ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--schedule 1f1b --ranks 5 --microbatches 2", "5 stages cannot share 4 layers"},
      {good + "--data short.txt", "short.txt"},
      {good + "--data empty.txt", "empty.txt"},
      {good + "--data nowhere.txt", "nowhere.txt"},
      {good + "--optimizer adam", "adamw"},
      {good + "--correction feedback", "error-feedback"},
      {good + "--backend thread", "threads"},
      {good + "--delay 1", "--backend serial"},
      {"--backend serial --microbatches 2 --delay -1", "--delay"},
      {"--backend serial --microbatches 2 --ranks 3 --delay 1,0", "--delay names 2"},
      {good + "--split 1,x", "--split"},
      {good + "--trace nowhere/trace.json", "nowhere/trace.json"},
      {good + "--loss nowhere/loss.csv", "nowhere/loss.csv"},
      {good + "--predict-from gpipe", "--predict-from"},
      {good + "--forward 1ms", "--compute emulated"},
      {good + "--compute fake", "emulated"},
      {good + "--compute emulated --optimizer sgd", "trains nothing"},
      {good + "--compute busy --optimizer sgd", "trains nothing"},
      {good + "--compute emulated --cores 1", "--cores: only --compute busy"},
      {good + "--cores 1", "--cores: only --compute busy"},
      {good + "--replicas 0", "--replicas"},
      {good + "--replicas 70000", "more than 65535"},
      {"--schedule pipedream --ranks 2 --microbatches 2 --replicas 2 --clip-norm 1", "pipedream"},
      {"--schedule dualpipe --ranks 3 --microbatches 6", "must be even"},
      {good + "--split 1,2", "3 layers"},
      {good + "--split 4", "--split"},
      {good + "--clip-norm", "--clip-norm"},
      {good + "--learning-rate fast", "--learning-rate"},
      {good + "--norm rsm", "the nearest is 'rms'"},
      {good + "--key-value-heads 3", "--key-value-heads 3 does not divide --heads 2"},
      {good + "--ffn 0", "--ffn"},
      {good + "--recompute alternate", "--recompute"},
      {"--schedule paci --ranks 2 --microbatches 2 --recompute full", "newer weights"},
      {good + "--reduction 1ms", "replicas"},
      {"--schedule pipedream --ranks 2 --microbatches 2 --clip-norm 1", "pipedream"},
      {"--schedule 2bw --ranks 4 --microbatches 2", "version 1 of stage 0 does not exist yet"},
  };
  for (const auto& [flags, expected] : cases) {
    const Outcome outcome = place.Pipelag("run" + std::string(kSmall) + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_NE(outcome.err.find(expected), std::string::npos) << flags << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << flags;
  }
  const Outcome uneven =
      place.Pipelag("run --heads 3 --hidden 16 --ranks 2 --microbatches 2 --schedule gpipe");
  EXPECT_EQ(uneven.exit_code, 2);
  const std::string emulated = "run --compute emulated --ranks 2 --microbatches 2 ";
  for (const auto& [flags, expected] : std::vector<std::pair<std::string, std::string>>{
           {"--schedule 1f1b --forward 1ms", "--backward is missing"},
           {"--schedule 1f1b --forward 1ms,1ms,1ms --backward 1ms", "--forward"},
           {"--schedule zb-h1 --forward 1ms --backward 1ms", "--backward-input"},
           {"--schedule 1f1b --reduction 1ms", "replicas"},
           {"--schedule 1f1b,gpipe --trace one.json", "--traces"}}) {
    const Outcome outcome = place.Pipelag(emulated + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_NE(outcome.err.find(expected), std::string::npos) << flags << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << flags;
  }
  EXPECT_NE(uneven.err.find("--heads 3 does not divide --hidden 16"), std::string::npos);
  EXPECT_EQ(place.Files(), (std::vector<std::string>{"empty.txt", "short.txt"}));
}

TEST(Run, OnGpusWhereThereIsNoneSaysSo) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is a GPU";
  const Workplace place;
  const Outcome outcome =
      place.Pipelag("run --backend cuda --schedule 1f1b --ranks 2 --microbatches 4");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err.find("pipelag: no GPU was found: "), 0U) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  const Outcome useless =
      place.Pipelag("run --transport nccl --schedule 1f1b --ranks 2 --microbatches 4");
  EXPECT_EQ(useless.exit_code, 2);
  EXPECT_NE(useless.err.find("--transport: only --backend cuda"), std::string::npos);
  EXPECT_NE(place.Pipelag("list").out.find("no GPU was found"), std::string::npos);
}

}  // namespace
}  // namespace pipelag
