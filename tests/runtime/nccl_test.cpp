// The transport over NCCL without a run around it, against an NCCL that is as strict as it may be:
// sums to the last bit, groups that are not too large, and every way in which it can fail.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "models/schedule/generators.h"
#include "models/schedule/replicate.h"
#include "runtime/device/nccl_transport.h"
#include "runtime/summation.h"
#include "tests/reason.h"
#include "tests/runtime/late_gpu.h"
#include "tests/runtime/strict_nccl.h"

namespace pipelag {
namespace {

constexpr size_t kMostBytes = 4000;

/// Ranks on threads of their own, each with a GPU.
struct Ring {
  explicit Ring(Program of, Nanoseconds deadline = std::chrono::seconds(20))
      : program(std::move(of)), control(deadline) {
    const int ranks = program.schedule().ranks;
    const Rendezvous others = AmongThreads(control, ranks);
    const std::vector<size_t> summand_bytes(program.schedule().groups.size(), kMostBytes);
    for (int rank = 0; rank < ranks; ++rank) {
      gpus.push_back(std::make_unique<LateGpu>(machine, rank, false));
      clocks.push_back(std::make_unique<DeviceClock>(*gpus.back(), control));
      ends.push_back(std::make_unique<NcclTransport>(program, rank, nccl, others, summand_bytes,
                                                     *clocks.back(), control));
    }
  }
  ~Ring() {
    ends.clear();
    EXPECT_TRUE(machine.Idle(std::chrono::seconds(5)));
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// The first error of all ranks.
  void OnEach(const std::function<void(int rank, Transport& end)>& what) {
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < ends.size(); ++rank) {
        threads.emplace_back([&, rank] {
          try {
            what(static_cast<int>(rank), *ends[rank]);
          } catch (const RunStopped&) {
          } catch (...) {
            control.Stop(std::current_exception());
          }
        });
      }
    }
    control.RethrowError();
  }
  std::string ReasonOf(const std::function<void(int rank, Transport& end)>& what) {
    return pipelag::ReasonOf([&] { OnEach(what); });
  }

  Program program;
  StrictNccl nccl;
  LateMachine machine{9};
  RunControl control;
  std::vector<std::unique_ptr<LateGpu>> gpus;
  std::vector<std::unique_ptr<DeviceClock>> clocks;
  std::vector<std::unique_ptr<NcclTransport>> ends;
};

/// With one group, of all ranks.
Program WithNorm(const std::string& schedule, int ranks) {
  return Program(Generate(schedule, {.ranks = ranks, .microbatches = ranks, .norm = true}), 2);
}

/// Numbers whose sum depends on the order in which they are added.
float Summand(int place, size_t i) {
  const uint64_t bits = RandomBits(4, static_cast<uint64_t>(place), i);
  return static_cast<float>(StandardNormal(bits)) * (bits % 3 == 0 ? 1e6f : 1.0f);
}

class NcclSums : public testing::TestWithParam<std::tuple<std::string, int, size_t>> {};

TEST_P(NcclSums, AreAddedInAscendingOrder) {
  const auto& [schedule, ranks, count] = GetParam();
  Ring ring(WithNorm(schedule, ranks));
  const Schedule& of = ring.program.schedule();
  std::vector<std::vector<float>> expected;
  std::vector<std::span<float>> summands;
  for (int stage = 0; stage < of.placed_stages(); ++stage) {
    expected.emplace_back();
    for (size_t i = 0; i < count; ++i) expected.back().push_back(Summand(stage, i));
  }
  for (auto& one : expected) summands.emplace_back(one);
  AddUp(summands);
  ring.OnEach([&](int rank, Transport& end) {
    end.Open();
    std::vector<std::vector<float>> own;
    std::vector<GradientPart> parts;
    for (int stage = 0; stage < of.placed_stages(); ++stage) {
      if (of.placement[static_cast<size_t>(stage)] != rank) continue;
      own.emplace_back();
      for (size_t i = 0; i < count; ++i) own.back().push_back(Summand(stage, i));
    }
    size_t next = 0;
    for (int stage = 0; stage < of.placed_stages(); ++stage) {
      if (of.placement[static_cast<size_t>(stage)] != rank) continue;
      parts.push_back({stage, own[next++]});
    }
    end.PostGradientSum(0, parts, {})->Wait();
    for (const auto& values : own) EXPECT_EQ(values, expected.front());
    end.Close();
  });
}

INSTANTIATE_TEST_SUITE_P(OfAnyNumber, NcclSums,
                         testing::Values(std::tuple{"1f1b", 2, 1000}, std::tuple{"1f1b", 3, 1000},
                                         std::tuple{"1f1b", 4, 3}, std::tuple{"1f1b", 1, 70},
                                         std::tuple{"interleaved-1f1b", 3, 517},
                                         std::tuple{"zb-v", 4, 64}));

TEST(NcclTransport, AddsDoublesInRankOrderAndBarriersWithoutValues) {
  Ring ring(WithNorm("1f1b", 4));
  ring.OnEach([&](int rank, Transport& end) {
    end.Open();
    std::array<double, 3> values = {1e17, 0.1 * (rank + 1), rank == 3 ? -3e17 : 7.0};
    end.PostAllReduce(0, values, {})->Wait();
    EXPECT_EQ(values[0], ((1e17 + 1e17) + 1e17) + 1e17);
    EXPECT_EQ(values[1], ((0.1 + 0.1 * 2) + 0.1 * 3) + 0.1 * 4);
    EXPECT_EQ(values[2], ((7.0 + 7.0) + 7.0) - 3e17);
    end.PostAllReduce(0, {}, {})->Wait();
    end.Close();
  });
}

TEST(NcclTransport, KeepsGroupsSmall) {
  Ring ring(WithNorm("interleaved-1f1b", 40), std::chrono::seconds(240));
  ring.OnEach([&](int rank, Transport& end) {
    end.Open();
    std::vector<float> first(100, static_cast<float>(rank));
    std::vector<float> second(100, 1.0f);
    end.PostGradientSum(0, {{rank, first}, {rank + 40, second}}, {})->Wait();
    EXPECT_EQ(first[99], 40.0f * 39.0f / 2 + 40.0f);
    end.Close();
  });
  EXPECT_LE(ring.nccl.largest_group, 128U);
  EXPECT_GT(ring.nccl.largest_group, 64U);
}

/// Streams that share a queue of the GPU would wait for each other's receives.
TEST(NcclFailure, OfMoreGroupsThanAGpuHasQueuesIsSaid) {
  const Schedule one = Generate("interleaved-1f1b",
                                {.ranks = 1, .microbatches = 1, .reduction = true, .chunks = 30});
  Ring ring(Program(Replicate(one, 2), 1));
  const std::string reason = ring.ReasonOf([](int /*rank*/, Transport& end) { end.Open(); });
  EXPECT_NE(reason.find("has 30 lanes and groups"), std::string::npos) << reason;
}

TEST(NcclFailure, OfARankThatNeverJoinsSaysWhoWaitsForWhom) {
  Ring ring(WithNorm("1f1b", 2), std::chrono::milliseconds(200));
  const std::string reason = ring.ReasonOf([](int rank, Transport& end) {
    if (rank == 1) end.Open();
  });
  EXPECT_NE(reason.find("waits for rank 0"), std::string::npos) << reason;
  EXPECT_NE(reason.find("nothing came within 200.00 ms"), std::string::npos) << reason;
}

/// Whoever has all its own connections must not begin while others still make theirs.
TEST(NcclFailure, OfARankThatIsNotConnectedKeepsTheOthersFromBeginning) {
  Ring ring(WithNorm("1f1b", 2), std::chrono::milliseconds(300));
  Communicators of_rank_0(ring.nccl, *ring.clocks[0], ring.control, 0);
  const Rendezvous others = AmongThreads(ring.control, 2);
  std::string reason;
  try {
    of_rank_0.Open({{0, {0}, "rank 0 waits for itself"}}, others);
  } catch (const Error& error) {
    reason = error.what();
  }
  EXPECT_EQ(reason.find("rank 0 waits for 1 of 2 ranks to be connected: nothing came within"), 0U)
      << reason;
}

TEST(NcclFailure, OfSizesThatDifferEndsBothRanks) {
  Ring ring(WithNorm("1f1b", 2));
  ring.nccl.abort_together = 3;  // F, B and the norm's
  const std::string reason = ring.ReasonOf([](int rank, Transport& end) {
    end.Open();
    std::array<std::byte, 512> buffer{};
    end.Post({0, rank == 0, buffer.data(), rank == 0 ? size_t{512} : size_t{256}}, {})->Wait();
    ADD_FAILURE() << rank;
  });
  EXPECT_NE(reason.find("message truncated"), std::string::npos) << reason;
  EXPECT_NE(reason.find("rank 0 to rank 1"), std::string::npos) << reason;
  EXPECT_EQ(ring.nccl.aborted_alone, 0);
}

TEST(NcclFailure, OfARankThatAbortsEndsTheOthers) {
  Ring ring(WithNorm("1f1b", 3));
  std::mutex mutex;
  const std::string reason = ring.ReasonOf([&](int rank, Transport& end) {
    end.Open();
    if (rank == 2) {
      // As if its process had died.
      const std::lock_guard lock(mutex);
      ring.ends[2].reset();
      return;
    }
    std::array<std::byte, 512> buffer{};
    end.Post({0, rank == 0, buffer.data(), 512}, {})->Wait();
    if (rank == 0) return;
    end.Post({2, false, buffer.data(), 512}, {})->Wait();
  });
  EXPECT_NE(reason.find("remote process exited"), std::string::npos) << reason;
}

TEST(NcclFailure, EndsAReceiveThatNobodySendsAtTheDeadline) {
  Ring ring(WithNorm("1f1b", 2), std::chrono::milliseconds(300));
  const std::string reason = ring.ReasonOf([](int rank, Transport& end) {
    end.Open();
    if (rank == 0) return;
    std::array<std::byte, 512> buffer{};
    end.Post({0, false, buffer.data(), 512}, {})->Wait();
  });
  EXPECT_EQ(reason.find("rank 1 waits for rank 0 to send F number 0: nothing came within"), 0U)
      << reason;
  // Whatever was under way is over, so memory can be given back.
  ring.ends.clear();
  EXPECT_TRUE(ring.machine.Idle(std::chrono::seconds(5)));
}

}  // namespace
}  // namespace pipelag
