// `pipelag run` under mpirun: every schedule there is, over MPI itself.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kNetwork =
    " --layers 8 --hidden 8 --heads 1 --sequence 4 --microbatch-size 1 --microbatches 12 "
    "--validation-microbatches 1";

class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (place_.StartProgram({"sh", "-c", "mpirun --version"}, {}).Finish().exit_code != 0) {
      GTEST_SKIP() << "mpirun is not installed";
    }
  }

  Outcome Run(int ranks, const std::string& command) {
    return place_
        .StartProgram({"sh", "-c",
                       fmt::format("exec mpirun --oversubscribe -n {} {} {}", ranks, PIPELAG_BINARY,
                                   command)},
                      // What Open MPI itself never frees is none of ours.
                      {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                       "ASAN_OPTIONS=detect_leaks=0"})
        .Finish();
  }

  Workplace place_;
};

/// Each number of ranks, optimizer and correction, in turn.
TEST_F(Mpi, EndsWithTheWeightsOfTheSerialReferenceUnderEverySchedule) {
  const json listed = Json(place_.Pipelag("list --format json")).at("schedules");
  const std::vector<std::pair<int, std::string>> ways = {
      {1, "--optimizer sgd --correction error-feedback"},
      {2, "--optimizer adamw --correction none"},
      {3, "--optimizer muon --correction error-feedback"},
      {4, "--optimizer adamw --correction error-feedback"},
      {3, "--optimizer sgd --correction none"},
      {4, "--optimizer muon --correction none"}};
  for (const auto& [ranks, updating] : ways) {
    std::string names;
    for (const json& schedule : listed) {
      const auto name = schedule.at("name").get<std::string>();
      if (name == "dualpipe" && ranks % 2 != 0) continue;  // pairs its ranks
      names += (names.empty() ? "" : ",") + name;
    }
    const std::string run = fmt::format("run --schedule {} --ranks {} --steps 3 {} --format json{}",
                                        names, ranks, updating, kNetwork);
    const json serial = Json(place_.Pipelag(run + " --backend serial")).at("results");
    const json processes = Json(Run(ranks, run + " --backend mpi")).at("results");
    ASSERT_EQ(processes.size(), serial.size());
    ASSERT_GE(serial.size(), listed.size() - 1);
    for (size_t i = 0; i < serial.size(); ++i) {
      EXPECT_EQ(processes[i].at("weights_sha256"), serial[i].at("weights_sha256"))
          << serial[i].at("schedule") << ranks << updating;
    }
  }
}

TEST_F(Mpi, WithClippingATiedHeadAndRecomputationEndsWithTheWeightsOfTheSerialReference) {
  const std::string run =
      std::string(
          "run --schedule 1f1b,zb-v,dualpipe,2bw --ranks 4 --steps 3 --clip-norm 0.3 --tied "
          "--recompute full --format json") +
      kNetwork;
  const json serial = Json(place_.Pipelag(run + " --backend serial")).at("results");
  const json processes = Json(Run(4, run + " --backend mpi")).at("results");
  ASSERT_EQ(processes.size(), 4u);
  for (size_t i = 0; i < serial.size(); ++i) {
    EXPECT_EQ(processes[i].at("weights_sha256"), serial[i].at("weights_sha256"));
  }
}

TEST_F(Mpi, OfReplicasEndsWithTheWeightsOfThreads) {
  const std::string run =
      std::string("run --schedule 2bw --ranks 1 --replicas 3 --steps 3 --format json") + kNetwork;
  const json threads = Json(place_.Pipelag(run));
  EXPECT_EQ(Json(Run(3, run + " --backend mpi")).at("weights_sha256"),
            threads.at("weights_sha256"));
}

TEST_F(Mpi, RefusesAnotherNumberOfRanks) {
  const Outcome outcome =
      Run(2, std::string("run --schedule 1f1b --ranks 3 --backend mpi") + kNetwork);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there are 2 processes, but 1f1b has 3 ranks"));
}

}  // namespace
}  // namespace pipelag
