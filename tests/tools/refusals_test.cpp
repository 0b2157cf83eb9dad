// What goes together and what does not: said before anything begins, by flag and file, the same by
// whatever runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kSmall =
    " --layers 4 --hidden 16 --heads 2 --sequence 8 --microbatch-size 2 --validation-microbatches 2"
    " --steps 5 ";

Outcome Trained(const Workplace& place, const std::string& flags) {
  return place.Pipelag("run --format json" + std::string(kSmall) + flags);
}

std::string Digest(const Workplace& place, const std::string& flags) {
  const Outcome outcome = Trained(place, flags);
  EXPECT_EQ(outcome.exit_code, 0) << flags << ": " << outcome.err;
  return json::parse(outcome.out).at("weights_sha256").get<std::string>();
}

/// Its one sentence, without a grid that may stand below.
std::string SentenceOf(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out, "");
  return outcome.err.substr(0, outcome.err.find('\n'));
}

/// Of threads and of the serial reference, which must not differ, and nothing is left behind.
std::string Refusal(const Workplace& place, const std::string& flags) {
  const std::vector<std::string> before = place.Files();
  const std::string with = flags + " --checkpoint kept --log log";
  const std::string sentence = SentenceOf(Trained(place, with));
  EXPECT_EQ(SentenceOf(Trained(place, "--backend serial " + with)), sentence);
  EXPECT_EQ(place.Files(), before);
  return sentence;
}

TEST(Refusals, TooFewMicrobatchesSayTheSameWhateverElseIsAsked) {
  const Workplace place;
  for (const std::string sizes : {"--schedule 2bw --ranks 4 --microbatches 2 ",
                                  "--schedule 2bw --body zb-h2 --ranks 4 --microbatches 4 ",
                                  "--schedule interleaved-1f1b --ranks 2 --microbatches 3 "}) {
    const std::string plain = Refusal(place, sizes);
    EXPECT_THAT(plain, HasSubstr("micro-batches"));
    for (const std::string more :
         {"--replicas 2", "--tied", "--clip-norm 1", "--replicas 2 --tied --clip-norm 1"}) {
      EXPECT_EQ(Refusal(place, sizes + more), plain) << more;
      EXPECT_EQ(SentenceOf(place.Pipelag("simulate " + sizes + more)), plain) << more;
    }
  }
}

TEST(Refusals, OfACorrectionThatReadsOldWeightsComeFirst) {
  const Workplace place;
  for (const std::string correction : {"dc-asgd", "dc-asgd-adaptive"}) {
    const std::string corrected = " --microbatches 4 --correction " + correction;
    // 2BW has both versions at every update, wherever that stands; PipeDream stashes.
    for (const std::string schedule :
         {"2bw --ranks 4", "2bw --ranks 1", "2bw --ranks 4 --update-placement late",
          "2bw --ranks 3 --clip-norm 0.5", "2bw --ranks 2 --tied", "2bw --ranks 2 --replicas 2",
          "2bw --ranks 2 --body zb-v --update-placement late", "pipedream --ranks 4",
          "pipedream --ranks 2 --replicas 2", "pipedream --vertical-sync --ranks 4",
          "1f1b --ranks 4"}) {
      const std::string flags = corrected + " --schedule " + schedule;
      EXPECT_EQ(Digest(place, flags), Digest(place, "--backend serial" + flags)) << flags;
    }
    for (const std::string schedule :
         {"paci --ranks 2", "paci --ranks 3 --body zb-h1", "paci --ranks 2 --replicas 2"}) {
      EXPECT_THAT(Refusal(place, corrected + " --schedule " + schedule),
                  AllOf(HasSubstr("(--correction)"), HasSubstr(correction), HasSubstr("stage 0")));
      Digest(place, corrected + " --correction-strength 0 --schedule " + schedule);
    }
    const Outcome study = place.Pipelag(
        "converge --delay 0,1,paci@2x4 --steps 3 --layers 2 --hidden 16 --heads 2 "
        "--sequence 8 --microbatch-size 2 --output runs --correction none," +
        correction);
    EXPECT_THAT(SentenceOf(study), AllOf(HasSubstr("(--correction)"), HasSubstr("paci@2x4")));
    EXPECT_EQ(place.Files(), std::vector<std::string>{});
  }
}

TEST(Refusals, AFileThatWaitsForWhatTheFlagsAskRunsAndElseSaysSo) {
  const Workplace place;
  const std::vector<std::pair<std::string, std::string>> asked = {
      {"--clip-norm", " 0.5"}, {"--tied", ""}, {"--replicas", " 2"}};
  constexpr size_t kReplicas = 2;
  const auto flags_of = [&](size_t mask) {
    std::string flags;
    for (size_t k = 0; k < asked.size(); ++k) {
      if ((mask >> k & 1) != 0) flags += " " + asked[k].first + asked[k].second;
    }
    return flags;
  };
  for (const std::string name : {"1f1b", "2bw", "zb-v", "dualpipe"}) {
    const std::string sizes = "--ranks 2 --microbatches 4 --schedule " + name;
    for (size_t mask = 0; mask < 8; ++mask) {
      const std::string form = mask % 2 == 0 ? "compute " : "communication ";
      const std::string reduction = (mask >> kReplicas & 1) != 0 ? " --reduction 1ms" : "";
      const Outcome exported =
          place.Pipelag("schedule --export x.csv --export-form " + form + sizes + reduction +
                        flags_of(mask & ~(size_t{1} << kReplicas)));
      EXPECT_EQ(exported.exit_code, 0) << exported.err;
      const std::string file = "--schedule x.csv" + flags_of(mask);
      const std::string digest = Digest(place, sizes + flags_of(mask));
      EXPECT_EQ(Digest(place, file), digest) << name << file;
      EXPECT_EQ(Digest(place, "--backend serial " + file), digest) << name << file;
      // One more than it waits for, or one less.
      const size_t k = mask % asked.size();
      if (k == kReplicas && name == "dualpipe") continue;  // it adds gradients without them too
      EXPECT_THAT(Refusal(place, "--schedule x.csv" + flags_of(mask ^ size_t{1} << k)),
                  AllOf(HasSubstr("x.csv"), HasSubstr(asked[k].first)))
          << name << file;
      place.Remove("x.csv");
      place.Remove("x.json");
    }
  }
}

TEST(Refusals, OfFilesNameFlagAndFile) {
  const Workplace place;
  const std::string out = "schedule --ranks 2 --microbatches 4 --export ";
  place.Pipelag(out + "plain.csv --schedule 1f1b");
  place.Pipelag(out + "global.csv --schedule 1f1b --flush-barrier global");
  // Only one of the stages reduces; copies that meet nowhere.
  place.Pipelag(out + "half.csv --schedule 1f1b --reduction 1ms");
  json half = json::parse(place.Read("half.json"));
  half["groups"].erase(1);
  place.Write("half.json", half.dump());
  std::string rows = place.Read("half.csv");
  place.Write("half.csv", rows.erase(rows.find("1AR0,"), 5));
  place.Pipelag(out + "apart.csv --schedule dualpipe");
  json apart = json::parse(place.Read("apart.json"));
  apart["groups"] = json::array();
  place.Write("apart.json", apart.dump());
  rows = place.Read("apart.csv");
  for (size_t at = 0; (at = rows.find("AR0,")) != std::string::npos;) rows.erase(at - 1, 5);
  place.Write("apart.csv", rows);
  // A norm taken before the last gradient is there.
  place.Pipelag(out + "early.csv --schedule gpipe --clip-norm 1");
  rows = place.Read("early.csv");
  for (const std::string late : {"0B3,0AR0", "1B3,0AR0"}) {
    rows.replace(rows.find(late), late.size(), late.substr(4) + "," + late.substr(0, 3));
  }
  place.Write("early.csv", rows);
  const std::string emulated = "run --compute emulated --forward 1ms --backward 1ms --schedule ";
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"simulate --replicas 2 --schedule plain.csv", {"--replicas: plain.csv"}},
      {"simulate --reduction 1ms --schedule plain.csv", {"--reduction: plain.csv"}},
      {"simulate --clip-norm --schedule plain.csv", {"--clip-norm: plain.csv"}},
      {"simulate --clip-norm 0 --schedule plain.csv", {"--clip-norm: '0'"}},
      {"simulate --flush-barrier global --schedule plain.csv", {"--flush-barrier: plain.csv"}},
      {"simulate --flush-barrier none --schedule global.csv", {"--flush-barrier", "global.csv"}},
      {emulated + "plain.csv --replicas 2", {"--replicas: plain.csv"}},
      {emulated + "half.csv --replicas 2", {"--replicas: half.csv", "stage 1"}},
      {emulated + "half.csv", {"half.csv", "(--replicas)"}},
      {emulated + "1f1b --ranks 2 --microbatches 4 --warm-up 1 --steps 1", {"--warm-up"}},
      {"run --schedule half.csv --replicas 2", {"--replicas: half.csv", "stage 1"}},
      {"run --schedule half.csv", {"half.csv", "(--replicas)"}},
      {"run --schedule apart.csv", {"apart.csv", "drift apart"}},
      {"run --clip-norm 1 --schedule early.csv", {"early.csv", "0AR0 stands before 0B3"}},
      {"run --schedule plain.csv --optimizer adam", {"--optimizer", "adamw"}},
      {"run --schedule plain.csv --correction feedback", {"--correction", "error-feedback"}},
      {"run --schedule plain.csv --optimizer lion --correction basis-rotation",
       {"--correction", "does not go with lion"}},
      {"run --backend serial --delay 1 --ranks 1000000 --microbatches 1000", {"--layers"}},
      {"run --backend serial --delay 1 --microbatches 2000000000", {"(--microbatches)"}},
      {"run --backend serial --delay 1 --ranks 4 --replicas 9 --microbatches 10000000",
       {"(--microbatches)"}},
      {"converge --output runs --delay 1 --microbatches 2000000000", {"(--microbatches)"}},
      {"converge --output runs --optimizer adam", {"--optimizer", "adamw"}},
      {"converge --output runs --correction feedback", {"--correction", "error-feedback"}},
      {"converge --output runs --optimizer lion --correction basis-rotation",
       {"--correction", "does not go with lion"}},
      {"run --schedule plain.csv --clip-norm 1e-320", {"--clip-norm"}},
      {"run --schedule plain.csv --layers 1", {"--layers", "2 stages cannot share 1 layers"}},
      {"run --schedule plain.csv --split 1,2", {"--split", "3 layers"}},
  };
  for (const auto& [command, words] : cases) {
    const std::string sentence = SentenceOf(place.Pipelag(command));
    for (const std::string& word : words) EXPECT_THAT(sentence, HasSubstr(word)) << command;
  }
  EXPECT_EQ(place.Pipelag("simulate --flush-barrier global --schedule global.csv").exit_code, 0);
}

TEST(Refusals, OfTwoThatNothingWouldTellApart) {
  const Workplace place;
  place.Pipelag(
      "schedule --schedule 1f1b --ranks 2 --microbatches 4 --reduction 1ms --export a.csv");
  const std::string run =
      "--replicas 2 --ranks 2 --microbatches 4 --loss loss.csv --traces out --schedule 1f1b,a.csv";
  const Outcome both = Trained(place, run);
  const json results = json::parse(both.out).at("results");
  EXPECT_EQ(results[0].at("schedule"), "1f1b");
  EXPECT_EQ(results[1].at("schedule"), "a.csv");
  EXPECT_EQ(results[0].at("weights_sha256"), results[1].at("weights_sha256"));
  EXPECT_NE(place.Read("out/1f1b.measured.json"), "");
  EXPECT_NE(place.Read("out/a.csv.measured.json"), "");
  EXPECT_THAT(place.Read("loss.csv"), AllOf(HasSubstr("\n1f1b,1,"), HasSubstr("\na.csv,1,")));
  EXPECT_EQ(Trained(place, run + " --predict-from a.csv").exit_code, 0);
  EXPECT_THAT(SentenceOf(Trained(place, run + " --predict-from b")), HasSubstr(": 1f1b, a.csv"));
  // By itself it keeps the name it has.
  EXPECT_EQ(Json(place.Pipelag("simulate --format json --schedule a.csv")).at("schedule"), "1f1b");
  EXPECT_THAT(SentenceOf(place.Pipelag("simulate --schedule a.csv,./a.csv")),
              AllOf(HasSubstr("--schedule"), HasSubstr("the name a.csv")));
  json slash = json::parse(place.Read("a.json"));
  slash["name"] = "../elsewhere";
  place.Write("a.json", slash.dump());
  EXPECT_THAT(SentenceOf(Trained(place, "--replicas 2 --traces out --schedule a.csv")),
              HasSubstr("a.json: /name"));
}

TEST(Refusals, ToGoOnWithOtherReplicasNameThem) {
  const Workplace place;
  const std::string way = "--schedule 1f1b --ranks 2 --warmup-steps 1 --microbatches ";
  Digest(place, way + "2 --replicas 2 --checkpoint kept --checkpoint-every 2");
  const std::string from = " --resume kept/step-00000002";
  EXPECT_THAT(SentenceOf(Trained(place, way + "2 --replicas 3" + from)),
              AllOf(HasSubstr("it had 2 replicas, this one has 3 (--replicas)"),
                    HasSubstr("/microbatches is 4 there, but 6 here")));
  // As many micro-batches in all are one batch; where only they differ, nothing else is named.
  Digest(place, way + "4" + from);
  EXPECT_THAT(SentenceOf(Trained(place, way + "3 --replicas 2" + from)),
              AllOf(HasSubstr("/microbatches is 4 there"), testing::Not(HasSubstr("replicas"))));
}

TEST(Replicas, AreInEveryResultThatDependsOnThem) {
  const Workplace place;
  const std::string sizes = " --format json --microbatches 4 --replicas 3 ";
  const std::string schedule = "--schedule 1f1b --ranks 2 ";
  const std::vector<std::pair<std::string, int>> commands = {
      {"run" + std::string(kSmall) + schedule, 2},
      {"run --backend serial" + std::string(kSmall) + schedule, 1},
      {"run --backend serial --ranks 2 --delay 1" + std::string(kSmall), 1},
      {"run --compute emulated --steps 2 --forward 1us --backward 1us " + schedule, 2},
      {"simulate " + schedule, 2},
      {"simulate --reduction 1ms " + schedule, 2}};
  for (const auto& [command, ranks] : commands) {
    const json result = Json(place.Pipelag(command + sizes));
    EXPECT_EQ(result.at("replicas"), 3) << command;
    EXPECT_EQ(result.at("microbatches"), 4) << command;
    EXPECT_EQ(result.at("ranks"), ranks) << command;
    EXPECT_EQ(result.at("stages"), 2) << command;
  }
  EXPECT_THAT(place.Pipelag("simulate --replicas 3 --microbatches 4 " + schedule).out,
              HasSubstr("4 micro-batches per step in each of 3 replicas"));
}

}  // namespace
}  // namespace pipelag
