// The worker over devices that are late; what holds it up, and what it refuses.
#include "runtime/executor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "models/schedule/generators.h"
#include "runtime/compute_around.h"
#include "runtime/cpu/local_transport.h"
#include "runtime/data/grammar.h"
#include "tests/runtime/agreed.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/transport_around.h"

namespace pipelag {
namespace {

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(5, 8, 4000);
  return corpus;
}

TrainingOptions Options(int stages) {
  TrainingOptions options;
  options.shape = {.layers = 4, .hidden = 16, .heads = 2, .sequence = 8, .vocabulary = 256};
  options.split = SplitLayers(4, stages);
  options.microbatch_size = 2;
  options.optimizer.name = "adamw";
  options.learning_rate = {.peak = 0.01f, .warmup_updates = 1, .total_updates = 6};
  options.validation_microbatches = 1;
  options.poison_freed = true;
  options.deadline = std::chrono::seconds(30);
  return options;
}

Program Lower(const std::string& schedule, int ranks, int m, bool norm = false) {
  return Program(Generate(schedule, {.ranks = ranks, .microbatches = m, .norm = norm}), 6);
}

struct LateCase {
  const char* schedule;
  std::vector<std::pair<int, int>> sizes;  ///< ranks and micro-batches
};

TEST(LateDevice, ChangesNoBit) {
  const std::vector<std::pair<int, int>> any = {{1, 2}, {2, 3}, {3, 4}, {4, 3}};
  const std::vector<LateCase> cases = {{"gpipe", any},
                                       {"1f1b", any},
                                       {"pipedream", any},
                                       {"2bw", any},
                                       {"interleaved-1f1b", {{2, 4}}},
                                       {"zb-h2", {{3, 4}}},
                                       {"zb-v", {{1, 3}, {2, 4}}},
                                       {"dualpipe", {{2, 4}, {4, 8}}},
                                       {"dualpipe-v", {{2, 4}}}};
  for (const auto& [schedule, sizes] : cases) {
    for (const auto& [ranks, m] : sizes) {
      const Program program = Lower(schedule, ranks, m);
      const TrainingOptions options = Options(program.schedule().stages);
      std::vector<std::unique_ptr<FakeDevice>> devices;
      const TrainingResult late = TrainOnThreads(
          program, options, TestCorpus(), [&](int rank, RankBackend inner, RunControl& control) {
            devices.push_back(
                std::make_unique<FakeDevice>(inner, control, 1000 * static_cast<uint64_t>(rank)));
            return RankBackend{devices.back().get(), devices.back().get()};
          });
      const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
      EXPECT_EQ(late.weights_sha256, serial.weights_sha256) << schedule << ranks;
      for (int s = 0; s < program.schedule().placed_stages(); ++s) {
        EXPECT_EQ(late.peak_activations[static_cast<size_t>(s)], program.PeakInFlight(s));
      }
    }
  }
}

TEST(LateDevice, ChangesNoBitWithClipping) {
  const Program program = Lower("1f1b", 3, 4, true);
  TrainingOptions options = Options(3);
  options.clip_norm = 0.5;
  std::vector<std::unique_ptr<FakeDevice>> devices;
  const TrainingResult late = TrainOnThreads(
      program, options, TestCorpus(), [&](int rank, RankBackend inner, RunControl& control) {
        devices.push_back(
            std::make_unique<FakeDevice>(inner, control, 77 * static_cast<uint64_t>(rank)));
        return RankBackend{devices.back().get(), devices.back().get()};
      });
  EXPECT_EQ(late.weights_sha256,
            TrainSerially(PlanOf(program), options, TestCorpus()).weights_sha256);
}

/// Counts how many F and B of one rank are started between a norm's AR and the first to wait for
/// it.
class NormWatch : public ComputeAround, public TransportAround {
 public:
  explicit NormWatch(RankBackend inner)
      : ComputeAround(*inner.compute), TransportAround(*inner.transport) {}

  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    if (HasMicrobatch(task.action.kind)) ++started_;
    if (task.action.kind == ActionKind::kUpdate) {
      for (const EventPtr& event : after) {
        meanwhile.push_back(started_ - posted_.at(event.get()));
      }
    }
    return ComputeAround::Start(task, after);
  }
  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    for (const EventPtr& event : after) EXPECT_FALSE(posted_.contains(event.get()));
    return TransportAround::Post(transfer, after);
  }
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    kept_.push_back(TransportAround::PostAllReduce(group, values, after));
    posted_[kept_.back().get()] = started_;
    return kept_.back();
  }

  std::vector<int> meanwhile;  ///< by update

 private:
  int started_ = 0;
  std::vector<EventPtr> kept_;
  std::map<const Event*, int> posted_;
};

TEST(Clipping, Of2BWHoldsUpNobodyButTheUpdate) {
  constexpr int kRanks = 4;
  constexpr int m = 8;
  const Program program = Lower("2bw", kRanks, m, true);
  TrainingOptions options = Options(kRanks);
  options.clip_norm = 0.5;
  std::vector<std::unique_ptr<NormWatch>> watches;
  const TrainingResult result =
      TrainOnThreads(program, options, TestCorpus(), [&](int, RankBackend inner, RunControl&) {
        watches.push_back(std::make_unique<NormWatch>(inner));
        return RankBackend{watches.back().get(), watches.back().get()};
      });
  EXPECT_EQ(result.weights_sha256,
            TrainSerially(PlanOf(program), options, TestCorpus()).weights_sha256);
  for (int s = 0; s < kRanks; ++s) {
    const std::vector<int>& meanwhile = watches[static_cast<size_t>(s)]->meanwhile;
    ASSERT_EQ(meanwhile.size(), static_cast<size_t>(program.steps()));
    // What is left of batch t + 1 behind the last B of batch t, up to the first F of batch t + 2:
    // of its F all but the w_s of the warm-up, of its B all but as many.
    const int warm_up = kRanks - 1 - s;
    for (size_t t = 0; t + 2 < meanwhile.size(); ++t) EXPECT_EQ(meanwhile[t], 2 * (m - warm_up));
  }
}

// Or what the matrix runs over would hold up nothing.
TEST(SynchronousSend, ReturnsOnlyWhenItIsReceived) {
  const Program program = Lower("1f1b", 2, 2);
  const RunControl control(std::chrono::milliseconds(200));
  LocalHub hub(program, control);
  const std::unique_ptr<Transport> sender = hub.End(0);
  const std::unique_ptr<Transport> receiver = hub.End(1);
  SynchronousTransport synchronous(*sender);
  const int lane = program.ProducedLane(ActionKind::kForward, 0);
  std::byte sent{7};
  std::byte received{};
  EXPECT_THAT(ReasonOf([&] {
                synchronous.Post({lane, true, &sent, 1}, {});
              }),
              testing::HasSubstr("rank 0 waits for rank 1 to take F number 0"));
  // That one is still under way.
  EXPECT_TRUE(receiver->Post({lane, false, &received, 1}, {})->Happened());
  EXPECT_EQ(received, sent);
}

TEST(Refusal, SaysWhyAScheduleCannotRun) {
  EXPECT_THROW(TrainOnThreads(Lower("gpipe", 2, 2), Options(3), TestCorpus()), Error);
  EXPECT_THROW(TrainOnThreads(Lower("gpipe", 2, 2, true), Options(2), TestCorpus()), Error);
}

}  // namespace
}  // namespace pipelag
