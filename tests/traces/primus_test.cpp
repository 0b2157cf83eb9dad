// The reader of Primus folders: a small run by hand, and every way in which a folder can be wrong.
#include "traces/primus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/file.h"
#include "traces/idle.h"
#include "traces/metrics.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

/// Two ranks, two micro-batches, two iterations, times in ms; removed at the end.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("pipelag_primus_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
    config = {{"pp_size", 2}, {"num_mbs", 2}, {"vp_size", 1}};
    for (const char* iteration : {"10", "9"}) {
      rank0[iteration] = {{"total", 11.5},
                          {"fwd_start", {0.25, 1.25}},
                          {"fwd_end", {1.25, 2.25}},
                          {"bwd_start", {5, 8}},
                          {"bwd_end", {7, 10}}};
      rank1[iteration] = {{"total", 8},
                          {"fwd_start", {1.5, 4.75}},
                          {"fwd_end", {2.75, 5.75}},
                          {"bwd_start", {2.75, 5.75}},
                          {"bwd_end", {4.75, 7.75}}};
    }
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  Trace Read() const {
    WriteFile(path_ / "config.json", config.dump());
    WriteFile(path_ / "pp_rank_0.json", rank0.dump());
    WriteFile(path_ / "pp_rank_1.json", rank1.dump());
    return ReadPrimus(path_);
  }
  std::string Complaint() const {
    try {
      Read();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  const std::filesystem::path& path() const { return path_; }

  Json config;
  Json rank0;
  Json rank1;

 private:
  std::filesystem::path path_;
};

TEST(Primus, LaysIterationsOneBehindTheOther) {
  const Folder folder;
  EXPECT_FALSE(IsPrimus(folder.path()));
  const Trace trace = folder.Read();
  EXPECT_TRUE(IsPrimus(folder.path()));
  EXPECT_EQ(trace.ranks, 2);
  EXPECT_EQ(trace.microbatches, 2);
  EXPECT_EQ(trace.steps, 2);
  EXPECT_TRUE(AreSorted(trace));
  ASSERT_EQ(trace.spans.size(), 16u);
  EXPECT_EQ(trace.spans[2].kind, ActionKind::kBackward);
  EXPECT_EQ(trace.spans[2].wait.count(), 2'750'000);
  EXPECT_EQ(trace.spans[4].microbatch, 2);
  EXPECT_EQ(trace.spans[4].start.count(), 11'750'000);
  EXPECT_EQ(trace.spans[8].wait.count(), 0);
  EXPECT_EQ(trace.spans[9].kind, ActionKind::kBackward);
  const Metrics metrics = ComputeMetrics(trace);
  EXPECT_EQ(metrics.makespan.count(), 21'250'000);
  EXPECT_EQ(metrics.step_time, (StepTime{11'500'000, 1}));
  const auto idle = ExplainIdle(trace);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(idle[rank].Total(), metrics.ranks[rank].idle);
}

TEST(Primus, WantsAllItsFiles) {
  const Folder folder;
  EXPECT_THROW(ReadPrimus(folder.path()), Error);
  folder.Read();
  std::filesystem::remove(folder.path() / "pp_rank_1.json");
  EXPECT_THROW(ReadPrimus(folder.path()), Error);
}

TEST(Primus, NamesFileAndPlace) {
  const auto expect = [](const Folder& folder, const std::string& file, const std::string& what) {
    const std::string complaint = folder.Complaint();
    EXPECT_NE(complaint.find(file), std::string::npos) << complaint;
    EXPECT_NE(complaint.find(what), std::string::npos) << complaint;
  };
  Folder folder;
  folder.config["vp_size"] = 2;
  expect(folder, "config.json", "/vp_size: only runs with one chunk");
  folder.config.erase("vp_size");
  folder.config["num_mbs"] = 0;
  expect(folder, "config.json", "/num_mbs: expected a whole number");
  folder.config["num_mbs"] = 3;
  expect(folder, "pp_rank_0.json", "/fwd_start: expected a list of 3 times");
  folder.config["num_mbs"] = 2;
  folder.config["pp_size"] = 3;
  expect(folder, "pp_rank_1.json", "in 1F1B order");  // that of three ranks is another
  folder.config.erase("pp_size");
  expect(folder, "config.json", "/pp_size: is missing");
  folder.config["pp_size"] = 2;
  const Json good = folder.rank1;
  folder.rank1["9"].erase("total");
  expect(folder, "pp_rank_1.json", "/9/total: is missing");
  folder.rank1 = good;
  folder.rank1["9"]["bwd_end"][1] = "late";
  expect(folder, "pp_rank_1.json", "/9/bwd_end/1: expected a time in milliseconds");
  folder.rank1 = good;
  folder.rank1["9"]["bwd_start"][0] = 2.5;
  expect(folder, "pp_rank_1.json", "/9/bwd_start/0: starts before the action before it");
  folder.rank1 = good;
  folder.rank1["9"]["bwd_end"][1] = 5.5;
  expect(folder, "pp_rank_1.json", "/9/bwd_end/1: ends before it starts");
  folder.rank1 = good;
  folder.rank1.erase("9");
  expect(folder, "pp_rank_1.json", "has other iterations than pp_rank_0.json");
  folder.rank1 = good;
  folder.rank1["nine"] = good["9"];
  expect(folder, "pp_rank_1.json", "/nine: is not the number of an iteration");
  folder.rank1 = Json::array();
  expect(folder, "pp_rank_1.json", "expected a JSON object");
}

}  // namespace
}  // namespace pipelag
