// `pipelag validate` and `simulate --machine`: what they print, what they refuse; and how far the
// model of costs is from what others measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kJob =
    R"({"machine": "dgx-a100", "layers": 8, "hidden": 1024, "heads": 16, "sequence": 1024,
        "schedule": "1f1b", "ranks": 2, "tensor": 2, "data": 2, "microbatches": 4})";

std::string Cases(const std::string& measured, const std::string& job = kJob) {
  return R"({"source": "made up", "rows": [{"name": "a", "group": "g", "job": )" + job +
         R"(, "measured": )" + measured + R"(}, {"name": "b", "group": "g", "job": )" + job +
         R"(, "measured": {"step_time_s": 0.1, "peak_memory_gib": 2}}]})";
}

/// The error of a file of cases.
std::string Refusal(const std::string& text, const std::string& flags = "") {
  const Workplace place;
  place.Write("cases.json", text);
  const Outcome outcome = place.Pipelag("validate cases.json " + flags);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_EQ(outcome.out, "");
  return outcome.err;
}

TEST(Validate, CalibratesOnARowAndReportsTheOthers) {
  const Workplace place;
  place.Write("cases.json", Cases(R"({"step_time_s": 0.1})"));
  const json plain = Json(place.Pipelag("validate cases.json --format json"));
  const json fitted = Json(place.Pipelag("validate cases.json --calibrate-on a --format json"));
  EXPECT_EQ(plain.at("unseen").at(0).at("time").at("rows"), 2);
  EXPECT_FALSE(plain.contains("calibration"));
  EXPECT_GT(std::abs(plain.at("rows").at(1).at("time_error").get<double>()), 0.1);
  EXPECT_TRUE(fitted.at("rows").at(0).at("calibrated_on").get<bool>());
  EXPECT_EQ(fitted.at("unseen").at(0).at("time").at("rows"), 1);
  EXPECT_NEAR(fitted.at("rows").at(1).at("time_error").get<double>(), 0, 0.02);
  EXPECT_GT(fitted.at("calibration").at("g").at("compute_factor"), 0);
  EXPECT_EQ(fitted.at("unseen").at(0).at("memory").at("rows"), 1);
  // By number and by "first" it is the same row.
  for (const char* row : {"0", "first"}) {
    EXPECT_EQ(
        Json(place.Pipelag({"validate", "cases.json", "--calibrate-on", row, "--format", "json"})),
        fitted);
  }
}

TEST(Validate, WritesWhatSimulateReads) {
  const Workplace place;
  place.Write("cases.json", Cases(R"({"step_time_s": 0.1})"));
  place.Write("job.json", kJob);
  EXPECT_EQ(place.Pipelag("validate cases.json --calibrate-on a -o fitted.json").exit_code, 0);
  const json run = Json(place.Pipelag("simulate job.json --efficiency fitted.json --format json"));
  EXPECT_NEAR(run.at("step_time_ns").get<double>() * 1e-9, 0.1, 0.002);
}

TEST(Validate, SaysByItsExitCodeWhetherErrorsAreTolerable) {
  const Workplace place;
  place.Write("cases.json", Cases(R"({"step_time_s": 0.1})"));
  EXPECT_EQ(place.Pipelag("validate cases.json --calibrate-on a --tolerance 5").exit_code, 0);
  EXPECT_EQ(place.Pipelag("validate cases.json --tolerance 5").exit_code, 1);
}

TEST(Validate, NamesWhatIsWrongInTheFile) {
  EXPECT_THAT(Refusal(Cases(R"({"step_time": 1})")),
              HasSubstr("cases.json: /rows/0/measured/step_time: unknown key; the nearest known "
                        "one is 'step_time_s'"));
  EXPECT_THAT(Refusal(Cases(R"({"step_time_s": -1})")), HasSubstr("-1 is not a positive number"));
  EXPECT_THAT(Refusal(Cases("{}")), HasSubstr("nothing was measured"));
  EXPECT_THAT(Refusal(Cases(R"({"step_time_s": 1})", R"({"machin": "dgx-a100"})")),
              HasSubstr("/rows/0/job/machin: unknown key; the nearest known one is 'machine'"));
  EXPECT_THAT(Refusal(Cases(R"({"step_time_s": 1})"), "--calibrate-on c"),
              HasSubstr("there is no row 'c'; the nearest is 'a', the last is number 1"));
  EXPECT_THAT(Refusal(R"({"rows": []})"), HasSubstr("/rows: expected a list of at least one row"));
}

TEST(Validate, UsesAllThatAJobSaysOrRefusesIt) {
  const std::string job(kJob, std::string_view(kJob).find_last_of('}'));
  for (const char* key : {"noise", "seeds", "seed", "trace", "format", "receive-slots", "cluster",
                          "cores", "microbatch-spread", "device-compute", "tokens", "mtbf"}) {
    const std::string with = job + R"(, ")" + key + R"(": "1"})";
    EXPECT_THAT(Refusal(Cases(R"({"step_time_s": 1})", with)),
                HasSubstr(std::string("cases.json: /rows/0/job/") + key +
                          ": 'validate' has no use for it"));
  }
  EXPECT_THAT(Refusal(Cases(R"({"step_time_s": 1})",
                            R"({"machine": "dgx-a100", "model": "gpt2", "hidden": 64, "ranks": 1,
                                "schedule": "1f1b", "microbatches": 1})")),
              HasSubstr("/rows/0/job/hidden: the job's 'model' says what the network is"));
}

TEST(Validate, NamesFileAndRowOfEveryError) {
  const std::string rest = R"("schedule": "1f1b", "ranks": 2, "microbatches": 4)";
  const std::string machine = R"("machine": "dgx-a100", "model": "gpt2", )";
  const auto refusal = [&](const std::string& job) {
    return Refusal(Cases(R"({"step_time_s": 1})", "{" + job + "}"));
  };
  const std::string first = "pipelag: cases.json: /rows/0 (a): ";
  EXPECT_THAT(refusal(rest), HasSubstr(first + "the job says neither a 'machine' nor times"));
  EXPECT_THAT(refusal(machine + rest + R"(, "tensor": 5)"), HasSubstr(first));
  EXPECT_THAT(refusal(machine + rest + R"(, "nodes": 1, "data": 16)"),
              HasSubstr(first + "the run"));
  EXPECT_THAT(refusal(machine + R"("schedule": "1f1b", "ranks": 16, "microbatches": 4)"),
              HasSubstr(first + "gpt2 has 12 blocks"));
  EXPECT_THAT(refusal(machine + R"("schedule": "1f2b", "ranks": 2, "microbatches": 4)"),
              HasSubstr("pipelag: cases.json: /rows/0/job/schedule: "));
}

TEST(Validate, RefusesFiguresAndNamesThatMakeNoTable) {
  for (const char* value : {"1e-300", "0", "-1", "1e300", "\"1\"", "null"}) {
    EXPECT_THAT(Refusal(Cases(std::string(R"({"step_time_s": )") + value + "}")),
                HasSubstr("/measured/step_time_s: "))
        << value;
  }
  for (const char* tolerance : {"-1", "nan", "x"}) {
    EXPECT_THAT(Refusal(Cases(R"({"step_time_s": 1})"), std::string("--tolerance ") + tolerance),
                HasSubstr("--tolerance: "));
  }
  std::string text = Cases(R"({"step_time_s": 1})");
  text.replace(text.find("\"a\""), 3, R"("a\u001b[31m")");
  EXPECT_THAT(Refusal(text), HasSubstr("/rows/0/name: holds a control character"));
}

TEST(Validate, KeepsItsTableNarrowAndMarksWhatDoesNotFit) {
  const Workplace place;
  std::string text = Cases(R"({"step_time_s": 1})");
  text.replace(text.find("\"a\""), 3, '"' + std::string(500, 'x') + '"');
  text.insert(text.find("\"layers\""), "\"device-memory\": \"1MiB\", ");
  place.Write("cases.json", text);
  const Outcome outcome = place.Pipelag("validate cases.json --calibrate-on 0,1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (size_t begin = 0; begin < outcome.out.size();) {
    const size_t end = outcome.out.find('\n', begin);
    EXPECT_LT(end - begin, 200);
    begin = end + 1;
  }
  EXPECT_THAT(outcome.out, HasSubstr("calibrated on, does not fit: "));
  EXPECT_THAT(outcome.out, HasSubstr("no row is left that was not calibrated on"));
  const json rows = Json(place.Pipelag("validate cases.json --format json")).at("rows");
  EXPECT_FALSE(rows.at(0).at("fits").get<bool>());
  EXPECT_TRUE(rows.at(1).at("fits").get<bool>());
  EXPECT_EQ(place.Pipelag("validate cases.json --calibrate-on 0,1 --tolerance 5").exit_code, 2);
}

TEST(SimulateMachine, AGivenSizeOverridesItselfAlone) {
  const Workplace place;
  place.Write("job.json", kJob);
  const auto memory = [&](const std::string& flags) {
    return Json(place.Pipelag("simulate job.json --format json " + flags)).at("memory").at(0);
  };
  const json whole = memory("");
  const char* const kFlags[][2] = {{"weight-bytes", "weights"},
                                   {"accumulator-bytes", "gradients"},
                                   {"optimizer-bytes", "optimizer"}};
  for (const auto& [flag, part] : kFlags) {
    const json given = memory(std::string("--") + flag + " 1GB");
    for (const auto& [other, key] : kFlags) {
      const std::string bytes = std::string(key) + "_bytes";
      EXPECT_EQ(given.at(bytes), std::string(key) == part ? json(1'000'000'000) : whole.at(bytes))
          << flag << ' ' << key;
    }
  }
  EXPECT_GT(memory("--activation-memory 1GB").at("peak_bytes"), whole.at("peak_bytes"));
  // What does not fit is found in the machine's memory, and in that given instead.
  const auto exit_code = [&](const std::string& flags) {
    return place.Pipelag("simulate job.json " + flags).exit_code;
  };
  EXPECT_EQ(exit_code(""), 0);
  EXPECT_EQ(exit_code("--optimizer-bytes 100GB"), 1);
  EXPECT_EQ(exit_code("--optimizer-bytes 100GB --device-memory 200GB"), 0);
  EXPECT_EQ(exit_code("--device-memory 100MB"), 1);
  EXPECT_EQ(exit_code("--device-memory 0"), 2);
}

TEST(SimulateMachine, IgnoresNoFlag) {
  const Workplace place;
  const std::string run = "simulate --schedule 1f1b --microbatches 2 --ranks 2 --machine dgx-h100 ";
  const auto refusal = [&](const std::string& flags) {
    const Outcome outcome = place.Pipelag(run + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    return outcome.err;
  };
  for (const char* flag : {"hidden", "heads", "key-value-heads", "ffn", "vocabulary"}) {
    EXPECT_THAT(refusal(std::string("--model gpt2 --") + flag + " 64"),
                HasSubstr(std::string("--") + flag + ": --model says what the network is"));
  }
  EXPECT_THAT(refusal("--model gpt2 --device-compute 1TFLOP/s"), HasSubstr("--device-compute: "));
  EXPECT_THAT(refusal("--model gpt2 --device-bandwidth 1TB/s"), HasSubstr("--device-bandwidth: "));
  for (const char* flag : {"expert", "expert-tensor", "expert-capacity"}) {
    EXPECT_THAT(refusal(std::string("--model gpt2 --") + flag + " 2"),
                HasSubstr(std::string("--") + flag + ": gpt2 has no routed experts"));
  }
  const std::string noted = place.Pipelag(run + "--model gpt2 --sequence 2048 --nodes 4").err;
  EXPECT_THAT(noted, HasSubstr("sequences of 2048 tokens are longer than the 1024 that gpt2"));
  EXPECT_THAT(noted, HasSubstr("30 of the 32 GPUs on 4 nodes of dgx-h100 stand idle"));
  EXPECT_EQ(place.Pipelag(run + "--model gpt2").err, "");
  EXPECT_EQ(place
                .Pipelag({"simulate", "--schedule", "1f1b", "--microbatches", "2", "--ranks", "2",
                          "--machine", "dgx-h100", "--model", ""})
                .err,
            "pipelag: --model: the value is empty\n");
}

TEST(SimulateMachine, UsesNoMoreThanThePeak) {
  const Workplace place;
  const json run = Json(place.Pipelag(
      "simulate --machine dgx-h100 --model Mistral-7B-v0.1 --sequence 131072 --context 8 "
      "--recompute full --zero 3 --ranks 1 --microbatches 1 --schedule 1f1b --format json"));
  EXPECT_LT(run.at("mfu"), 0.6);
  EXPECT_LT(run.at("hfu"), 0.8);
  EXPECT_GT(run.at("mfu"), 0.2);
}

TEST(SimulateMachine, SaysWhatSoManyTokensTake) {
  const Workplace place;
  place.Write("job.json", kJob);
  const auto run = [&](const std::string& tokens) {
    return Json(place.Pipelag("simulate job.json --format json --tokens " + tokens));
  };
  const json whole = run("2T");
  const double seconds = 2e12 / whole.at("tokens_per_s").get<double>();
  EXPECT_NEAR(whole.at("training").at("days").get<double>() / (seconds / 86400), 1, 1e-9);
  EXPECT_NEAR(whole.at("training").at("gpu_hours").get<double>() / (8 * seconds / 3600), 1, 1e-9);
  EXPECT_EQ(run("2000B").at("training"), whole.at("training"));
  EXPECT_EQ(run("2e12").at("training"), whole.at("training"));
  for (const char* tokens : {"0", "T", "-1T", "1e30", "5X", "nan"}) {
    EXPECT_EQ(place.Pipelag({"simulate", "job.json", "--tokens", tokens}).exit_code, 2) << tokens;
  }
}

TEST(SimulateMachine, KeepsLinesShortWithManyRanks) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(
      "simulate --machine dgx-h100 --model Llama-3.1-405B --ranks 63 --microbatches 2 --schedule "
      "1f1b,gpipe");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  for (size_t begin = 0; begin < outcome.out.size();) {
    const size_t end = outcome.out.find('\n', begin);
    EXPECT_LT(end - begin, 400) << outcome.out.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(SimulateMachine, ReportsThroughputAndMemory) {
  const Workplace place;
  place.Write("job.json", kJob);
  const json run = Json(place.Pipelag("simulate job.json --format json"));
  EXPECT_EQ(run.at("gpus"), 8);
  const double tokens = 2.0 * 4 * 1024 / (run.at("step_time_ns").get<double>() * 1e-9);
  EXPECT_NEAR(run.at("tokens_per_s").get<double>() / tokens, 1, 1e-6);
  EXPECT_NEAR(run.at("tokens_per_s_per_gpu").get<double>() / (tokens / 8), 1, 1e-6);
  EXPECT_NEAR(run.at("tflops_per_gpu").get<double>() / 312, run.at("mfu").get<double>(), 1e-9);
  EXPECT_GE(run.at("hfu"), run.at("mfu"));
  EXPECT_GT(run.at("memory").at(0).at("peak_bytes"), 0);
  // A given time overrides the model's.
  const json slower = Json(place.Pipelag("simulate job.json --forward 1s --format json"));
  EXPECT_GT(slower.at("step_time_ns"), 4'000'000'000);
}

TEST(SimulateMachine, SpreadsMicrobatches) {
  const Workplace place;
  const auto step = [&](const std::string& flags) {
    const json run = Json(place.Pipelag(
        "simulate --schedule 1f1b --ranks 4 --microbatches 16 --format json " + flags));
    return run.at("step_time_ns").get<int64_t>();
  };
  EXPECT_EQ(step("--microbatch-spread 0"), 57'000'000);
  EXPECT_GT(step("--microbatch-spread 0.3"), 60'000'000);
  EXPECT_NE(step("--microbatch-spread 0.3"), step("--microbatch-spread 0.3 --seed 1"));
  EXPECT_THAT(place
                  .Pipelag("simulate --schedule 1f1b --ranks 4 --microbatches 16 "
                           "--microbatch-spread 9")
                  .err,
              HasSubstr("--microbatch-spread: the spread of micro-batches must lie between 0"));
}

TEST(SimulateMachine, FindsWhatDoesNotFit) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(
      "simulate --model Llama-3.1-70B --machine dgx-h100 --schedule 1f1b --ranks 2 --tensor 8 "
      "--microbatches 2");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("rank 0"));
  // Also what no device comes near.
  const Outcome whole = place.Pipelag(
      "simulate --model Llama-3.1-405B --machine dgx-h100 --schedule 1f1b --ranks 1 "
      "--microbatches 2");
  EXPECT_EQ(whole.exit_code, 1);
  EXPECT_THAT(whole.out, HasSubstr("more than its device's 80.00 GiB"));
}

TEST(SimulateMachine, RefusesWhatCannotBe) {
  const Workplace place;
  const auto refusal = [&](const std::string& flags) {
    const Outcome outcome = place.Pipelag("simulate --schedule 1f1b --microbatches 2 " + flags);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(refusal("--ranks 2 --machine dgx-h10 --model gpt2"), HasSubstr("'dgx-h100'"));
  EXPECT_THAT(refusal("--ranks 2 --model gpt2"), HasSubstr("--model: needs --machine"));
  EXPECT_THAT(refusal("--ranks 2 --machine dgx-h100"), HasSubstr("--layers is missing"));
  EXPECT_THAT(refusal("--ranks 16 --machine dgx-h100 --model gpt2"),
              HasSubstr("12 blocks, too few for 16 stages"));
  EXPECT_THAT(refusal("--ranks 2 --machine dgx-h100 --model gpt2 --tensor 5"), HasSubstr("5"));
  EXPECT_THAT(refusal("--ranks 2 --machine dgx-h100 --model gpt2 --data 1000000 --context 1024"),
              HasSubstr("more than 100000000 GPUs"));
  EXPECT_THAT(refusal("--ranks 2 --machine dgx-h100 --model gpt2 --sequence 9999999 --microbatch "
                      "1000"),
              HasSubstr("a micro-batch has 9999999000 tokens"));
  EXPECT_THAT(refusal("--ranks 4 --machine dgx-h100 --model gpt2 --data 4 --nodes 1"),
              HasSubstr("the run takes 16 GPUs, but 1 node of dgx-h100 has 8"));
}

TEST(Validate, FitsLayersToTheLayersOfThatMachine) {
  // Table 4 of Korthikanti et al., arXiv 2205.05198: one of them tells the others.
  const Workplace place;
  const json out = Json(place.Pipelag({"validate", std::string(PIPELAG_CASES) + "/layers_22b.json",
                                       "--calibrate-on", "first", "--format", "json"}));
  const json& actions = out.at("unseen").at(0).at("actions");
  EXPECT_EQ(actions.at("rows"), 8);
  EXPECT_LE(actions.at("median").get<double>(), 0.03);
  EXPECT_FALSE(out.at("unseen").at(0).contains("time"));
}

TEST(Validate, MeetsRunsThatNothingWasFittedTo) {
  const Workplace place;
  const auto unseen = [&](const char* file) {
    return Json(place.Pipelag(
                    {"validate", std::string(PIPELAG_CASES) + "/" + file, "--format", "json"}))
        .at("unseen")
        .at(0);
  };
  EXPECT_LE(unseen("mlperf.json").at("time").at("worst").get<double>(), 0.03);
  EXPECT_LE(unseen("megatron_ci.json").at("memory").at("worst").get<double>(), 0.085);
}

/// What is reached on rows that were not calibrated on, at one row per group: changes that make it
/// worse must not go unseen.
struct Table {
  const char* file;
  double median;
  double p95;
  double memory = 0;  ///< median error of peak memory; 0: none is published
};

class MeasuredTables : public testing::TestWithParam<Table> {};

TEST_P(MeasuredTables, StayAsCloseAsTheyAre) {
  const Workplace place;
  const std::string file = std::string(PIPELAG_CASES) + "/" + GetParam().file;
  const json out =
      Json(place.Pipelag({"validate", file, "--calibrate-on", "first", "--format", "json"}));
  const json& time = out.at("unseen").at(0).at("time");
  EXPECT_LE(time.at("median").get<double>(), GetParam().median);
  EXPECT_LE(time.at("p95").get<double>(), GetParam().p95);
  if (GetParam().memory == 0) return;
  const json& memory = out.at("unseen").at(0).at("memory");
  EXPECT_LE(memory.at("median").get<double>(), GetParam().memory);
}

INSTANTIATE_TEST_SUITE_P(Public, MeasuredTables,
                         testing::Values(Table{"sc21.json", 0.020, 0.045},
                                         Table{"korthikanti.json", 0.030, 0.050},
                                         Table{"bloom.json", 0.076, 0.158, 0.23},
                                         Table{"vtrain_single.json", 0.061, 0.200},
                                         Table{"vtrain_multi.json", 0.058, 0.220},
                                         Table{"torchtitan.json", 0.058, 0.340, 0.03},
                                         Table{"zero_bubble.json", 0.013, 0.030, 0.06},
                                         Table{"dgxc.json", 0.016, 0.088}),
                         [](const auto& table) {
                           const std::string file = table.param.file;
                           return file.substr(0, file.find('.'));
                         });

}  // namespace
}  // namespace pipelag
