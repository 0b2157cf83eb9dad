// `pipelag sweep`: order, bytes that no number of threads or processes changes, going on from a
// file, and points that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr char kGrid[] =
    "sweep --ranks 4 --forward 1ms --backward 2ms --grid schedule=1f1b,2bw,interleaved-1f1b "
    "--grid microbatches=3..12*2 --chunks 2 ";

std::vector<std::string> LinesOf(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// As one of `size` processes that a launcher started.
class Process {
 public:
  Process(int rank, int size) {
    setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
    setenv("OMPI_COMM_WORLD_SIZE", std::to_string(size).c_str(), 1);
  }
  ~Process() {
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
};

TEST(Sweep, IsAllCombinationsInOrder) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(kGrid + std::string("--format csv"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<std::string> lines = LinesOf(outcome.out);
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_TRUE(
      lines[0].starts_with("schedule,microbatches,backward,chunks,forward,ranks,step_time_ns"));
  EXPECT_TRUE(lines[1].starts_with("1f1b,3,2ms,2,1ms,4,18000000,"));
  EXPECT_TRUE(lines[3].starts_with("1f1b,12,2ms,2,1ms,4,45000000,"));
  EXPECT_TRUE(lines[4].starts_with("2bw,3,"));
  EXPECT_TRUE(lines[9].starts_with("interleaved-1f1b,12,2ms,2,1ms,4,81000000,"));
}

TEST(Sweep, PointsThatCannotBeSayWhy) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(kGrid);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("interleaved-1f1b 6: interleaved-1f1b needs whole groups"));
  const auto rows = Json(place.Pipelag(kGrid + std::string("--format json")))["rows"];
  EXPECT_TRUE(rows[6]["step_time_ns"].is_null());
  EXPECT_THAT(rows[6]["error"], HasSubstr("whole groups"));
  EXPECT_TRUE(rows[0]["error"].is_null());
}

/// A flag may be called as a figure of a result is.
TEST(Sweep, HasNoColumnTwice) {
  const Workplace place;
  place.Write("times.csv", "layer,forward_ms,backward_ms\na,1,2\nb,1,2\nc,3,6\nd,1,2\n");
  for (const char* network :
       {"--model gpt2 --machine dgx-a100 --layers 8", "--layer-times times.csv"}) {
    for (const char* split :
         {"--grid split=even,auto --microbatches 4", "--split auto --grid microbatches=4,8",
          "--grid split=even;auto --microbatches 4"}) {
      const Outcome outcome = place.Pipelag("sweep --schedule 1f1b --ranks 2 --format csv " +
                                            std::string(network) + " --steps 2 " + split);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      std::istringstream header(LinesOf(outcome.out)[0]);
      std::set<std::string> names;
      for (std::string name; std::getline(header, name, ',');) {
        EXPECT_TRUE(names.insert(name).second) << name;
      }
      EXPECT_TRUE(names.contains("split"));
      EXPECT_TRUE(names.contains("layers_per_stage"));
    }
  }
  const auto rows =
      Json(place.Pipelag("sweep --layer-times times.csv --schedule 1f1b --ranks 2 --microbatches 4 "
                         "--grid split=even,auto --format json"))["rows"];
  EXPECT_EQ(rows[0]["split"], "even");
  EXPECT_EQ(rows[0]["layers_per_stage"], "2,2");
  EXPECT_EQ(rows[1]["split"], "auto");
  EXPECT_EQ(rows[1]["layers_per_stage"], "2,2");
}

TEST(Sweep, AgreesWithSimulate) {
  const Workplace place;
  const auto rows = Json(place.Pipelag(
      "sweep --ranks 3 --microbatches 5 --forward 1ms,2ms,3ms --backward 2ms --weight-bytes 1MiB "
      "--activation-memory 3MiB --grid schedule=gpipe,pipedream --grid p2p-latency=0;70us "
      "--format json"))["rows"];
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    const auto one = Json(place.Pipelag(
        "simulate --ranks 3 --microbatches 5 --forward 1ms,2ms,3ms --backward 2ms --weight-bytes "
        "1MiB --activation-memory 3MiB --format json --schedule " +
        row["schedule"].get<std::string>() + " --p2p-latency " +
        row["p2p-latency"].get<std::string>()));
    EXPECT_EQ(row["step_time_ns"], one["step_time_ns"]);
    EXPECT_EQ(row["makespan_ns"], one["makespan_ns"]);
    int64_t memory = 0;
    for (const auto& rank : one["per_rank"]) {
      memory = std::max(memory, rank["peak_memory_bytes"].get<int64_t>());
    }
    EXPECT_EQ(row["peak_memory_bytes"], memory);
  }
}

TEST(Sweep, IsTheSameOnAnyNumberOfThreadsAndProcesses) {
  for (const char* file : {"out.csv", "out.json"}) {
    const std::string command = kGrid + std::string("--output ") + file;
    const Workplace alone;
    const Outcome first = alone.Pipelag(command + " --jobs 1");
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const Workplace threads;
    EXPECT_EQ(threads.Pipelag(command + " --jobs 5").out, first.out);
    EXPECT_EQ(threads.Read(file), alone.Read(file));
    for (const int size : {1, 2, 3}) {
      const Workplace shared;
      Outcome last;
      for (int rank = size - 1; rank >= 0; --rank) {
        const Process process(rank, size);
        last = shared.Pipelag(command);
        EXPECT_EQ(last.exit_code, 0) << last.err;
        EXPECT_EQ(last.out.empty(), rank > 0);
      }
      EXPECT_EQ(last.out, first.out);
      EXPECT_EQ(shared.Read(file), alone.Read(file));
      EXPECT_EQ(shared.Files(), std::vector<std::string>{file});
    }
  }
}

TEST(Sweep, GoesOnFromWhatIsThere) {
  const std::string command = kGrid + std::string("--output out.csv");
  const Workplace place;
  place.Pipelag(command);
  const std::vector<std::string> lines = LinesOf(place.Read("out.csv"));
  // A kept row is taken as it is, whatever it says; rows of other points stay behind the grid's.
  std::string kept = lines[2];
  kept.replace(kept.find("27000000"), 8, "27000001");
  const std::string other =
      "gpipe,3,2ms,2,1ms,4,1,1,0.5,0.5,,,,1,,0,1,,,\"a, \"\"quoted\"\" word\",0";
  place.Write("out.csv", lines[0] + '\n' + other + '\n' + kept + '\n');
  const Outcome resumed = place.Pipelag(command + " --resume");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  std::vector<std::string> expected = lines;
  expected[2] = kept;
  expected.push_back(other);
  EXPECT_EQ(LinesOf(place.Read("out.csv")), expected);
  EXPECT_EQ(place.Pipelag(command).exit_code, 0);
  EXPECT_EQ(LinesOf(place.Read("out.csv")), lines);  // without --resume all is new
  EXPECT_EQ(place.Pipelag(command + " --resume --steps 2").exit_code, 2);  // other columns
  EXPECT_EQ(LinesOf(place.Read("out.csv")), lines);
}

TEST(Sweep, GoesOnWithOtherProcesses) {
  const std::string command = kGrid + std::string("--output out.csv --resume");
  const Workplace place;
  const Outcome all = place.Pipelag(command);
  const std::string rows = place.Read("out.csv");
  const std::vector<std::string> lines = LinesOf(rows);
  for (const size_t kept : {size_t{1}, size_t{5}, lines.size()}) {
    std::string begun;
    for (size_t i = 0; i < kept; ++i) begun += lines[i] + '\n';
    place.Write("out.csv", begun);
    for (int rank = 1; rank >= 0; --rank) {
      const Process process(rank, 2);
      const Outcome outcome = place.Pipelag(command);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, rank == 0 ? all.out : "");
    }
    EXPECT_EQ(place.Read("out.csv"), rows);
    EXPECT_EQ(place.Files(), std::vector<std::string>{"out.csv"});
  }
}

/// Rows are only as good as the files they were computed from.
TEST(Sweep, GoesOnOnlyFromTheSameInputs) {
  const std::string times = "layer,forward_ms,backward_ms\na,1,2\nb,1,2\n";
  const std::string costs = R"({"forward_ns": [1000, 1000], "backward_ns": [2000, 2000]})";
  struct Input {
    const char* flags;
    const char* file;
    std::string before;
    std::string after;
  };
  for (const Input& input : {Input{"--layer-times in.csv", "in.csv", times, times + "c,5,5\n"},
                             Input{"--grid layer-times=in.csv", "in.csv", times, times + "c,5,5\n"},
                             Input{"--costs in.json", "in.json", costs, costs + "\n"}}) {
    const Workplace place;
    place.Write(input.file, input.before);
    const std::string command =
        "sweep --schedule 1f1b --ranks 2 --grid microbatches=2,4 --output out.csv " +
        std::string(input.flags);
    const Outcome first = place.Pipelag(command);
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const std::string rows = place.Read("out.csv");
    EXPECT_EQ(place.Pipelag(command + " --resume").out, first.out);
    place.Write(input.file, input.after);
    const Outcome changed = place.Pipelag(command + " --resume");
    EXPECT_EQ(changed.exit_code, 2);
    EXPECT_EQ(Lines(changed.err), 1u);
    EXPECT_THAT(changed.err, HasSubstr("out.csv: row 1: was computed from other inputs"));
    EXPECT_EQ(place.Read("out.csv"), rows);
    EXPECT_EQ(place.Pipelag(command).exit_code, 0);
    EXPECT_EQ(place.Pipelag(command + " --resume").exit_code, 0);
  }
}

TEST(Sweep, RefusesFiguresThatCannotBe) {
  const std::string command = kGrid + std::string("--output out.csv --resume");
  const Workplace place;
  place.Pipelag(command);
  const std::string rows = place.Read("out.csv");
  const std::string time = "27000000";
  for (const char* figure : {"0", "-27000000", "abc", "2e9", "nan"}) {
    std::string wrong = rows;
    wrong.replace(wrong.find(time), time.size(), figure);
    place.Write("out.csv", wrong);
    const Outcome outcome = place.Pipelag(command);
    EXPECT_EQ(outcome.exit_code, 2) << figure;
    EXPECT_THAT(outcome.err, HasSubstr("out.csv: row 2: '" + std::string(figure) +
                                       "' cannot be a step_time_ns"));
  }
  std::string wrong = rows;
  wrong.erase(wrong.find(time), time.size());
  place.Write("out.csv", wrong);
  EXPECT_THAT(place.Pipelag(command).err, HasSubstr("out.csv: row 2: has no step_time_ns"));
  for (const auto& [text, reason] :
       {std::pair<std::string, std::string>{"", "out.csv: is empty"},
        {rows.substr(0, 20), "its last line is cut off"},
        {rows.substr(0, rows.size() - 5), "its last line is cut off"}}) {
    place.Write("out.csv", text);
    const Outcome outcome = place.Pipelag(command);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  }
}

/// What another run left beside the output never gets into a result.
TEST(Sweep, TakesNoRowsOfAnotherRun) {
  const std::string command =
      "sweep --layer-times in.csv --schedule 1f1b --ranks 2 --grid microbatches=2,4 --output "
      "out.csv";
  const std::string times = "layer,forward_ms,backward_ms\na,1,2\nb,1,2\n";
  const Workplace place;
  place.Write("in.csv", times);
  {
    const Process process(1, 2);
    ASSERT_EQ(place.Pipelag(command).exit_code, 0);
  }
  ASSERT_EQ(place.Files().size(), 2u);
  place.Write("in.csv", times + "c,7,7\n");
  const Process process(0, 2);
  const Outcome waiting = place.Pipelag(command + " --deadline 1ms");
  EXPECT_EQ(waiting.exit_code, 2);
  EXPECT_EQ(Lines(waiting.err), 1u);
  EXPECT_THAT(waiting.err, HasSubstr("process 1 of 2 has other flags or files than process 0"));
  EXPECT_THAT(waiting.err, HasSubstr("1 rows are in out.csv, to go on from with --resume"));
  EXPECT_EQ(Lines(place.Read("out.csv")), 2u);  // what the first one computed is not lost
}

/// What takes no time is odd, but no reason to lose it between processes.
TEST(Sweep, SharesOutWhatTakesNoTime) {
  const Workplace place;
  const std::string command =
      "sweep --ranks 2 --schedule 1f1b --forward 0ms --backward 0ms --grid microbatches=2,4 "
      "--output out.csv";
  const Outcome alone = place.Pipelag(command);
  for (int rank = 1; rank >= 0; --rank) {
    const Process process(rank, 2);
    const Outcome outcome = place.Pipelag(command);
    EXPECT_EQ(outcome.exit_code, alone.exit_code) << outcome.err;
    EXPECT_EQ(outcome.out, rank == 0 ? alone.out : "");
  }
}

TEST(Sweep, KnowsTheProcessesOfSrun) {
  const Workplace place;
  const std::string command = kGrid + std::string("--output out.csv");
  const auto alone = [&](const std::vector<std::string>& variables) {
    Started started = place.Start(command, variables);
    return started.Finish();
  };
  EXPECT_EQ(alone({"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0"}).out, "");
  EXPECT_EQ(place.Files().size(), 1u);
  const Outcome first = alone({"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(place.Files(), std::vector<std::string>{"out.csv"});
  // A batch script is one process, however many it may start.
  EXPECT_EQ(alone({"SLURM_PROCID=0", "SLURM_NTASKS=2"}).out, first.out);
  EXPECT_EQ(first.out, place.Pipelag(kGrid).out);
}

TEST(Sweep, FailsIfNothingCanBeSimulated) {
  const Workplace place;
  const Outcome fixed = place.Pipelag(
      "sweep --schedule 1f1b --model gpt3 --machine dgx-a100 --ranks 4 --grid "
      "microbatches=4,8");
  EXPECT_EQ(fixed.exit_code, 2);
  EXPECT_EQ(fixed.out, "");
  EXPECT_EQ(Lines(fixed.err), 1u);
  const Outcome all = place.Pipelag(
      "sweep --schedule interleaved-1f1b --ranks 4 --chunks 2 --grid microbatches=3,5 --output "
      "out.json");
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_THAT(all.err, HasSubstr("none of the 2 points can be simulated; of the first: "));
}

TEST(Sweep, NeedsNoFileWhereTheJobHasAName) {
  const Workplace place;
  const Outcome alone = place.Pipelag(kGrid);
  setenv("PMIX_NAMESPACE", "prterun-host-17@1", 1);
  for (int rank = 2; rank >= 0; --rank) {
    const Process process(rank, 3);
    const Outcome outcome = place.Pipelag(kGrid);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, rank == 0 ? alone.out : "");
    if (rank == 2) {
      ASSERT_EQ(place.Files().size(), 1u);
      EXPECT_TRUE(place.Files()[0].starts_with("pipelag.part-2-of-3-prterun_host_17_1-"));
    }
  }
  unsetenv("PMIX_NAMESPACE");
  EXPECT_TRUE(place.Files().empty());
}

TEST(Sweep, RefusesWhatMakesNoSense) {
  const Workplace place;
  const auto error = [&](const std::string& rest) {
    const Outcome outcome = place.Pipelag("sweep --ranks 4 --schedule 1f1b " + rest);
    EXPECT_EQ(outcome.exit_code, 2) << rest;
    return outcome.err;
  };
  EXPECT_THAT(error("--grid microbatch"), HasSubstr("is not of the form flag=value,value"));
  EXPECT_THAT(error("--grid microbatchs=4"), HasSubstr("the nearest is 'microbatch"));
  EXPECT_THAT(error("--grid microbatches=4,4"), HasSubstr("has the value 4 twice"));
  EXPECT_THAT(error("--grid microbatches=4..2"), HasSubstr("is not a range"));
  EXPECT_THAT(error("--grid microbatches=0..8*2"), HasSubstr("is not a range"));
  EXPECT_THAT(error("--grid microbatches=1..1000000000"), HasSubstr("more than 1000000 values"));
  EXPECT_THAT(error("--grid microbatches=1..2000 --grid warmup=1..1000"),
              HasSubstr("more than 1000000 points"));
  EXPECT_THAT(error("--grid microbatches=9223372036854775806..9223372036854775807 --steps 2"),
              HasSubstr("none of the 2 points can be simulated"));
  EXPECT_THAT(error("--grid ranks=2,4"), HasSubstr("--ranks is given elsewhere as well"));
  EXPECT_THAT(error("--grid microbatches=4 --resume"), HasSubstr("needs --output"));
  EXPECT_THAT(error("--grid microbatches=4 --output out.txt"),
              HasSubstr("neither a .csv nor a .json"));
  const Process process(0, 2);
  EXPECT_THAT(error("--grid microbatches=4"), HasSubstr("2 processes need --output"));
  EXPECT_THAT(error("--grid microbatches=4,8 --output out.csv --deadline 1ms"),
              HasSubstr("process 0 waits for process 1 of 2"));
}

}  // namespace
}  // namespace pipelag
