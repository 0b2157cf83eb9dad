// `pipelag run` that is stopped and goes on: by kill -9, on a full disk, with weights that broke;
// what it leaves behind, logs and shows meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "tests/tools/launched.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr std::string_view kSmall =
    "run --format json --layers 4 --hidden 16 --heads 2 --sequence 8 --microbatch-size 2 "
    "--validation-microbatches 2 --microbatches 4 ";

std::string Command(const std::string& flags) { return std::string(kSmall) + flags; }

std::string Digest(const Outcome& outcome) {
  return Json(outcome).at("weights_sha256").get<std::string>();
}

std::vector<nlohmann::json> LinesOf(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Checkpoint, KilledAtAnyMomentGoesOnToTheSameWeights) {
  for (const char* way : {"--schedule 2bw --ranks 2 --correction error-feedback --steps 120 ",
                          "--backend serial --delay 2 --optimizer muon --steps 120 "}) {
    const Workplace place;
    const std::string whole = Digest(place.Pipelag(Command(way)));
    const std::string keeping = "--checkpoint ck --checkpoint-every 2 --keep-last 2 --log log ";
    EXPECT_TRUE(place.PipelagKilled(Command(way + keeping), "log", 20));
    for (const size_t lines : {60, 90}) {
      EXPECT_TRUE(place.PipelagKilled(Command(way + keeping + "--resume ck"), "log", lines));
    }
    const nlohmann::json last = Json(place.Pipelag(Command(way + keeping + "--resume ck")));
    EXPECT_EQ(last.at("weights_sha256"), whole);
    EXPECT_GT(last.at("first_step"), 20);
    std::vector<int64_t> logged;
    for (const nlohmann::json& line : LinesOf(place.Read("log"))) {
      if (line.contains("step")) logged.push_back(line.at("step"));
    }
    std::vector<int64_t> all(120);
    std::iota(all.begin(), all.end(), 1);
    EXPECT_EQ(logged, all);
  }
}

bool IsTemporary(const std::string& name) { return name.ends_with(".tmp"); }

// Whatever it is writing at that moment: it writes all the time.
TEST(Checkpoint, OfARunThatIsToldToEndLeavesNothingHalfWritten) {
  for (const int signal : {SIGTERM, SIGINT, SIGTERM, SIGINT, SIGTERM, SIGINT}) {
    const Workplace place;
    Started run = place.Start(
        "run --schedule 2bw --ranks 2 --microbatches 2 --layers 4 --hidden 256 --heads 4 "
        "--sequence 4 --microbatch-size 1 --steps 100000 --checkpoint ck --checkpoint-every 1 "
        "--keep-last 2",
        {});
    std::vector<std::string> files;
    while (std::none_of(files.begin(), files.end(), IsTemporary)) files = place.AllFiles();
    ASSERT_EQ(kill(run.process(), signal), 0);
    EXPECT_EQ(run.Finish().exit_code, -signal);
    files = place.AllFiles();
    EXPECT_TRUE(std::none_of(files.begin(), files.end(), IsTemporary));
  }
}

TEST(Checkpoint, OfProcessesGoesOnWhicheverOfThemIsKilled) {
  const Workplace place;
  const std::string way = "--schedule 2bw --ranks 3 --correction error-feedback --steps 400 ";
  const std::string whole = Digest(place.Pipelag(Command(way)));
  std::string run = way + "--backend mpi --checkpoint ck --checkpoint-every 2 --keep-last 2 ";
  std::ptrdiff_t lines = 20;
  for (const size_t victim : {1u, 2u, 0u}) {
    std::vector<Started> started = StartAll(place, 3, Command(run + "--log log"));
    WaitForLines(place, "log", lines);
    ASSERT_EQ(kill(started[victim].process(), SIGKILL), 0);
    const std::vector<Outcome> outcomes = FinishAll(started);
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_EQ(outcomes[rank].exit_code, rank == victim ? -SIGKILL : 2);
    }
    if (lines == 20) run += "--resume ck ";
    lines += 40;
  }
  std::vector<Started> last = StartAll(place, 3, Command(run));
  const nlohmann::json json = Json(FinishAll(last)[0]);
  EXPECT_EQ(json.at("weights_sha256"), whole);
  EXPECT_GT(json.at("first_step"), 20);
}

TEST(Checkpoint, IsTakenUpByOtherRanksAndSchedules) {
  const Workplace place;
  const std::string steps = "--steps 12 --clip-norm 0.5 ";
  const std::string whole = Digest(place.Pipelag(Command("--schedule gpipe --ranks 2 " + steps)));
  const std::string keeping = "--checkpoint ck --checkpoint-every 5 ";
  EXPECT_EQ(Digest(place.Pipelag(Command("--schedule 1f1b --ranks 4 " + keeping + steps))), whole);
  for (const char* way :
       {"--schedule 1f1b --ranks 4 ", "--schedule gpipe --ranks 3 ",
        "--backend serial --schedule interleaved-1f1b --ranks 2 ", "--backend serial --delay 0 "}) {
    const Outcome outcome = place.Pipelag(Command(way + ("--resume ck/step-00000005 " + steps)));
    EXPECT_EQ(Digest(outcome), whole) << way;
    EXPECT_EQ(outcome.err, "");
  }
  // DualPipe adds up in another order: said, not refused.
  const Outcome other =
      place.Pipelag(Command("--schedule dualpipe --ranks 2 --resume ck/step-00000005 " + steps));
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("added gradients in another order"));
}

TEST(Checkpoint, OfALlamaIsTakenUpAlsoWithRecomputation) {
  const Workplace place;
  const std::string llama =
      "--norm rms --positions rotary --mlp swiglu --key-value-heads 1 --no-bias --steps 6 ";
  const std::string kept = "--schedule 1f1b --ranks 2 --checkpoint ck --checkpoint-every 3 ";
  const std::string whole = Digest(place.Pipelag(Command(kept + llama)));
  const std::string way = "--schedule zb-h1 --ranks 4 --recompute full --resume ck/step-00000003 ";
  EXPECT_EQ(Digest(place.Pipelag(Command(way + llama))), whole);
}

TEST(Checkpoint, OnAFullDiskEndsAndKeepsTheOneBefore) {
  const Workplace place;
  const std::string way = "--schedule 2bw --ranks 2 --steps 12 --checkpoint ck ";
  const std::string whole = Digest(place.Pipelag(Command(way + "--checkpoint-every 5")));
  for (const char* later : {"ck/step-00000010", "ck/step-00000012"}) place.Remove(later);
  const Outcome full =
      place.PipelagOnFullDisk(Command(way + "--resume ck --checkpoint-every 1 --log log"), 20'000);
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_EQ(full.out, "");
  EXPECT_THAT(full.err, testing::MatchesRegex("pipelag: rank [01] at [01]U0: "
                                              "ck/step-00000006/stage-000[12]-of-0002.safetensors: "
                                              "cannot be written: File too large\n"));
  const nlohmann::json after = Json(place.Pipelag(Command(way + "--resume ck")));
  EXPECT_EQ(after.at("first_step"), 5);
  EXPECT_EQ(after.at("weights_sha256"), whole);
  const Outcome log =
      place.PipelagOnFullDisk(Command("--schedule 2bw --ranks 2 --steps 12 --log small"), 300);
  EXPECT_EQ(log.exit_code, 2);
  EXPECT_THAT(log.err, HasSubstr("small: cannot be written: File too large"));
}

TEST(Checkpoint, OfWeightsThatBreakIsTheLastGoodOne) {
  const Workplace place;
  for (const char* way : {"--schedule 2bw --ranks 2 ", "--backend serial --delay 1 "}) {
    const Outcome outcome = place.Pipelag(
        Command(way +
                std::string("--optimizer sgd --learning-rate 1e6 --warmup-steps 12 "
                            "--steps 12 --checkpoint-every 1 --keep-last 1 --checkpoint ") +
                (way[2] == 's' ? "threads" : "serial")));
    const nlohmann::json json = Json(outcome);
    EXPECT_TRUE(json.contains("diverged"));
    EXPECT_THAT(json.at("diverged_where").get<std::string>(),
                testing::MatchesRegex("stage [01]: .*not finite.*"));
    const auto diverged = json.at("diverged").get<int64_t>();
    EXPECT_THAT(outcome.err,
                testing::AllOf(HasSubstr(fmt::format("diverged at step {}: stage ", diverged)),
                               HasSubstr("; the last checkpoint that later steps have shown to be "
                                         "good is ")));
    // The step before the one that broke was the first that was computed on it, two updates later.
    const int64_t good = diverged - 3;
    ASSERT_TRUE(outcome.err.ends_with(std::to_string(good) + "\n")) << outcome.err;
    const std::string folder = outcome.err.substr(outcome.err.rfind(' ') + 1);
    EXPECT_NE(place.Read(folder.substr(0, folder.size() - 1) + "/manifest.json"), "");
  }
}

TEST(Checkpoint, WhatDoesNotFitEndsWithOneSentence) {
  const Workplace place;
  const std::string way = "--schedule 2bw --ranks 2 --steps 6 ";
  place.Pipelag(Command(way + "--checkpoint ck --checkpoint-every 3"));
  place.Pipelag(Command(way + "--checkpoint torn"));
  place.Remove("torn/step-00000006/manifest.json");
  place.Pipelag(Command(way + "--checkpoint bad"));
  std::string bytes = place.Read("bad/step-00000006/stage-0001-of-0002.safetensors");
  bytes.back() ^= 1;
  place.Write("bad/step-00000006/stage-0001-of-0002.safetensors", bytes);
  const std::string from = way + "--resume ck/step-00000003 ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {way + "--resume ck", "ck/step-00000006 is at step 6, so --steps 6 leaves nothing to do"},
      {way + "--resume nowhere", "nowhere: there is no such folder"},
      {way + "--resume torn", "torn: holds no finished checkpoint"},
      {way + "--resume torn/step-00000006", "step-00000006: holds no manifest.json"},
      {way + "--resume bad", "bad/step-00000006/stage-0001-of-0002.safetensors: is damaged"},
      {from + "--optimizer sgd", "/optimizer/name is \"adamw\" there, but \"sgd\" here"},
      {from + "--norm rms", "/network/norm is absent there, but \"rms\" here"},
      {from + "--ffn 32", "/network/ffn is absent there, but 32 here"},
      {from + "--no-bias", "/network/bias is absent there, but false here"},
      {from + "--seed 2", "/seed is 1 there, but 2 here"},
      {"--schedule 1f1b --ranks 2 --steps 6 --resume ck/step-00000003", "/delay/0 is 1 there"},
      {"--schedule 2bw --ranks 2 --steps 7 --resume ck/step-00000003",
       "/learning_rate/total_updates is 6 there, but 7 here"},
      {from + "--checkpoint ck", "ck: already holds the checkpoint of step 6"},
      {way + "--checkpoint ck", "ck: already holds the checkpoint of step 6"},
      {way + "--checkpoint ck/step-00000003/manifest.json", "is a file, a folder is needed"},
      {way + "--keep-last 2", "--keep-last: needs --checkpoint"},
      {way + "--checkpoint c --checkpoint-every 0", "--checkpoint-every"},
      {from + "--init ck", "--init"},
      {way + "--checkpoint c --repeat 2", "--repeat"},
      {way + "--compute emulated --checkpoint c", "trains nothing"},
      {way + "--compute emulated --log c", "trains nothing"},
      {"--schedule 2bw,1f1b --ranks 2 --checkpoint c", "name one --schedule"},
      {way + "--log nowhere/log", "nowhere"},
      {way + "--init ck/step-00000003/manifest.json", "manifest.json: is no safetensors file"},
      {way + "--init ck/step-00000003/stage-0001-of-0002.safetensors", "holds no tensor"},
  };
  const std::vector<std::string> files = place.Files();
  for (const auto& [flags, expected] : cases) {
    const Outcome outcome = place.Pipelag(Command(flags));
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << flags;
    EXPECT_EQ(Lines(outcome.err), 1u) << outcome.err;
    EXPECT_EQ(outcome.out, "") << flags;
  }
  EXPECT_EQ(place.Files(), files);
}

TEST(Log, HasAHeaderAndALinePerStep) {
  const Workplace place;
  const std::string way = "--schedule 2bw --ranks 2 --steps 6 --warmup-steps 1 --clip-norm 0.5 ";
  const nlohmann::json run = Json(place.Pipelag(
      Command(way + "--log log --checkpoint ck --checkpoint-every 3 --loss loss.csv")));
  std::vector<nlohmann::json> lines = LinesOf(place.Read("log"));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0].at("schedule"), "2bw");
  EXPECT_EQ(lines[0].at("last_step"), 6);
  EXPECT_EQ(lines[0].at("tokens_per_step"), 64);
  for (size_t i = 1; i <= 6; ++i) {
    EXPECT_EQ(lines[i].at("step"), i);
    EXPECT_EQ(lines[i].at("tokens"), 64 * i);
    EXPECT_GT(lines[i].at("tokens_per_s"), 0);
    EXPECT_GT(lines[i].at("gradient_norm"), 0);
    EXPECT_GE(lines[i].at("seconds"), i == 1 ? 0.0 : lines[i - 1].at("seconds").get<double>());
  }
  EXPECT_EQ(lines[6].at("loss"), run.at("final_loss"));
  EXPECT_EQ(lines[1].at("learning_rate"), 0.002);
  EXPECT_EQ(Lines(place.Read("loss.csv")), 7u);
  // Half a line from a run that was killed. What goes on does steps 4 to 6 again.
  const std::string before = place.Read("log");
  place.Write("log", before + "{\"step\":");
  Json(place.Pipelag(Command(way + "--log log --resume ck/step-00000003 --loss loss.csv")));
  const std::vector<nlohmann::json> again = LinesOf(place.Read("log"));
  ASSERT_EQ(again.size(), 8u);
  EXPECT_TRUE(std::equal(again.begin(), again.begin() + 4, lines.begin()));
  EXPECT_EQ(again[4].at("first_step"), 3);
  for (size_t step = 4; step <= 6; ++step) EXPECT_EQ(again[step + 1].at("step"), step);
  EXPECT_EQ(again[7].at("loss"), lines[6].at("loss"));
  EXPECT_THAT(place.Read("loss.csv"), HasSubstr("loss\n2bw,4,256,"));
  // Of what it did again nothing is left if it is done once more.
  Json(place.Pipelag(Command(way + "--log log --resume ck/step-00000003")));
  EXPECT_EQ(Lines(place.Read("log")), 8u);
  // Without --resume it begins anew.
  Json(place.Pipelag(Command(way + "--log log")));
  EXPECT_EQ(Lines(place.Read("log")), 7u);
}

TEST(Progress, IsForATerminalOnly) {
  const Workplace place;
  const std::string way = "--schedule 2bw --ranks 2 --steps 6 ";
  EXPECT_EQ(place.Pipelag(Command(way)).err, "");
  const std::string shown = place.PipelagOnTerminal(Command(way));
  EXPECT_THAT(shown, testing::ContainsRegex(
                         "2bw +\\[[# ]{30}\\] 1/6  loss [0-9.]+  [0-9]+ tokens/s  [0-9]+ s left"));
  EXPECT_TRUE(shown.ends_with("\r\x1b[K"));
}

TEST(Weights, GoOutAndInAgain) {
  const Workplace place;
  const std::string shape = "--schedule 1f1b --ranks 2 --steps 3 ";
  const std::string digest = Digest(place.Pipelag(Command(shape + "--export out.safetensors")));
  // Three steps without a rate change nothing.
  const std::string still = shape + "--learning-rate 0 ";
  EXPECT_EQ(Digest(place.Pipelag(Command(still + "--init out.safetensors"))), digest);
  const Outcome refused = place.Pipelag(Command(still + "--init out.safetensors --export out.bin"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the weights are in out.bin.safetensors"));
  EXPECT_EQ(place.Read("out.bin.safetensors"), place.Read("out.safetensors"));
}

/// llm.c's file of a network of 2 layers and 8 channels: small numbers, different everywhere.
std::string LlmcFile() {
  const std::vector<int32_t> numbers = {20240326, 3, 8, 256, 2, 2, 8, 256};
  std::string content(1024, '\0');
  std::memcpy(content.data(), numbers.data(), numbers.size() * sizeof(int32_t));
  const int floats = 256 * 8 + 8 * 8 + 2 * (4 * 8 + 24 * 8 + 24 + 64 + 8 + 256 + 32 + 256 + 8) + 16;
  for (int i = 0; i < floats; ++i) {
    const float value = 0.01f * static_cast<float>(i * 37 % 101 - 50);
    content.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return content;
}

TEST(Weights, OfLlmcBringTheirShapeAndComeBackByteForByte) {
  const Workplace place;
  place.Write("model.bin", LlmcFile());
  const std::string way =
      "run --format json --schedule gpipe --ranks 2 --microbatches 2 --steps 1 --learning-rate 0 "
      "--validation-microbatches 2 --microbatch-size 2 --init model.bin ";
  Json(place.Pipelag(way + "--export again.bin"));
  EXPECT_TRUE(place.Read("again.bin") == LlmcFile());
  const Outcome other = place.Pipelag(way + "--layers 4");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("--layers: 4 is not the 2 of model.bin"));
}

TEST(Data, OfTokensNeedsTheirVocabulary) {
  const Workplace place;
  std::string tokens;
  for (int i = 0; i < 2000; ++i) {
    const auto token = static_cast<uint16_t>(i * 7 % 300);
    tokens.append(reinterpret_cast<const char*>(&token), sizeof token);
  }
  place.Write("a.bin", tokens);
  place.Write("b.bin", tokens);
  const std::string way = "--schedule 1f1b --ranks 2 --steps 6 --data a.bin,b.bin ";
  const Outcome few = place.Pipelag(Command(way));
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_THAT(few.err, HasSubstr("a.bin: token 259 at byte 74 is not below --vocabulary 256"));
  const std::string enough = way + "--vocabulary 300 ";
  Json(place.Pipelag(Command(enough + "--checkpoint ck --checkpoint-every 3")));
  EXPECT_EQ(place.Pipelag(Command(enough + "--validation-data b.bin")).exit_code, 0);
  // The same run on other data is another run.
  const Outcome other = place.Pipelag(
      Command("--schedule 1f1b --ranks 2 --steps 6 --data b.bin --vocabulary 300 --resume "
              "ck/step-00000003"));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("/data/tokens is 3600 there, but 1800 here"));
  place.Write("a.bin", tokens.substr(1));
  EXPECT_THAT(place.Pipelag(Command(enough)).err, HasSubstr("a.bin: 3999 bytes are no whole"));
}

}  // namespace
}  // namespace pipelag
