// What each generator's order implies: smallest sizes, delays, live versions, slots, and what it
// refuses.
#include "models/schedule/generators.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tuple>

#include "models/schedule/greedy_listing.h"
#include "models/schedule/pipelines.h"
#include "models/schedule/program.h"
#include "models/schedule/slots.h"

namespace pipelag {
namespace {

Program Lower(const std::string& schedule, GeneratorOptions options, int64_t steps = 1) {
  return Program(Generate(schedule, options), steps);
}

GeneratorOptions Sizes(int p, int m) { return {.ranks = p, .microbatches = m}; }

int CeilDiv(int a, int b) { return (a + b - 1) / b; }

std::string ErrorOf(const std::string& schedule, const GeneratorOptions& options) {
  try {
    Lower(schedule, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Smallest number of micro-batches, in steps of `unit`, with which 2BW's two versions are enough.
int SmallestFor2BW(GeneratorOptions options, int unit = 1) {
  for (options.microbatches = unit;; options.microbatches += unit) {
    if (ErrorOf("2bw", options).empty()) return options.microbatches;
  }
}

// Where a rank runs ahead of itself by more than there is, it does all forwards first.
TEST(OneStep, OfManyRanksAndFewMicrobatches) {
  const Schedule schedule = Generate("1f1b", Sizes(1000, 2));
  for (int rank = 0; rank < 1000; ++rank) {
    std::string text;
    for (const Action& a : schedule.body[static_cast<size_t>(rank)]) {
      text += fmt::format("{}{}{} ", a.stage, KindName(a.kind), a.microbatch);
    }
    const char* order =
        rank < 999 ? "{0}F0 {0}F1 {0}B0 {0}B1 {0}U0 " : "{0}F0 {0}B0 {0}F1 {0}B1 {0}U0 ";
    EXPECT_EQ(text, fmt::format(fmt::runtime(order), rank));
  }
}

// A listing is given up when it cannot end soon enough, and only then.
TEST(GreedyListing, IsGivenUpWhereItIsTooLate) {
  for (const auto& [p, m, limit] : {std::tuple(2, 4, 2), {4, 8, 4}, {4, 9, 8}, {5, 11, 3}}) {
    const Schedule pipeline = VPipeline("zb-auto", Sizes(p, m));
    const auto stages = static_cast<size_t>(pipeline.stages);
    GivenCosts costs{std::vector<int64_t>(stages, 3), std::vector<int64_t>(stages, 4),
                     std::vector<int64_t>(stages, 2), 1};
    costs.backward_input[1] = 9;
    for (const int put_off : {-1, 0, 1}) {
      for (const bool first : {true, false}) {
        const ListingRules rules{1, first, !first, put_off, 0};
        Schedule free = pipeline;
        const int64_t end = ListGreedily(free, costs, {limit}, rules);
        ASSERT_NE(end, kDeadEnd);
        Schedule in_time = pipeline;
        EXPECT_EQ(ListGreedily(in_time, costs, {limit, end + 1}, rules), end);
        EXPECT_EQ(in_time.body, free.body);
        for (const int64_t too_late : {end, end / 2, int64_t{0}}) {
          Schedule given_up = pipeline;
          EXPECT_EQ(ListGreedily(given_up, costs, {limit, too_late}, rules), kDeadEnd);
        }
      }
    }
  }
}

TEST(TwoBW, SmallestBatchOfEveryBody) {
  for (int p = 2; p <= 8; ++p) {
    EXPECT_EQ(SmallestFor2BW({.ranks = p}), p - 1);
    EXPECT_EQ(SmallestFor2BW({.ranks = p, .body = "zb-h1"}), p - 1);
    EXPECT_EQ(SmallestFor2BW({.ranks = p, .body = "zb-h2"}), 2 * (p - 1));
    EXPECT_EQ(SmallestFor2BW({.ranks = p, .warmup_slope = 3}), 3 * (p - 1));
    EXPECT_EQ(SmallestFor2BW({.ranks = p, .body = "zb-v"}), 2 * p - 1);
    for (int v = 2; v <= 4; ++v) {
      EXPECT_EQ(SmallestFor2BW({.ranks = p, .chunks = v}, p), p == 2 ? 2 : 2 * p) << p << v;
    }
  }
}

TEST(TwoBW, EveryBodyHasDelayOneAndTwoVersions) {
  const GeneratorOptions bodies[] = {
      {.ranks = 4, .microbatches = 8},
      {.ranks = 4, .microbatches = 8, .warmup_slope = 2},
      {.ranks = 4, .microbatches = 8, .warmup = {7, 3, 1, 0}},
      {.ranks = 4, .microbatches = 8, .chunks = 2},
      {.ranks = 4, .microbatches = 8, .body = "zb-h1"},
      {.ranks = 4, .microbatches = 8, .body = "zb-h2"},
      {.ranks = 4, .microbatches = 8, .body = "zb-v"},
  };
  for (const GeneratorOptions& options : bodies) {
    for (const bool late : {false, true}) {
      GeneratorOptions placed = options;
      placed.late_update = late;
      const Program program = Lower("2bw", placed, 5);
      for (int s = 0; s < program.schedule().placed_stages(); ++s) {
        EXPECT_EQ(program.versions(s).gradient_delay, 1);
        EXPECT_EQ(program.versions(s).gradient_delay_min, 1);
        EXPECT_EQ(program.versions(s).backward_delay, 1);
        EXPECT_EQ(program.versions(s).weight_versions, 2);
      }
    }
  }
}

TEST(TwoBW, NormAndReductionsStandBehindAllTheirGradients) {
  for (const char* body : {"1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"}) {
    for (const bool late : {false, true}) {
      const GeneratorOptions options{.ranks = 4,
                                     .microbatches = 16,
                                     .reduction = true,
                                     .norm = true,
                                     .late_update = late,
                                     .body = body};
      EXPECT_EQ(ErrorOf("2bw", options), "") << body << late;
    }
  }
}

TEST(TwoBW, TooFewMicrobatchesSayTheSameWhateverElseIsAsked) {
  for (int p = 2; p <= 5; ++p) {
    for (const char* body : {"1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"}) {
      const int unit = body == std::string("interleaved-1f1b") ? p : 1;
      for (int m = unit; m <= 2 * p; m += unit) {
        const GeneratorOptions plain{.ranks = p, .microbatches = m, .body = body};
        // What else waits for it is missing versions too: there may be more findings.
        const auto first_of = [](const std::string& error) {
          return error.substr(0, error.find(" (one of"));
        };
        const std::string refusal = first_of(ErrorOf("2bw", plain));
        for (unsigned asked = 1; asked < 16; ++asked) {
          GeneratorOptions options = plain;
          options.reduction = (asked & 1) != 0;
          options.norm = (asked & 2) != 0;
          options.tied = (asked & 4) != 0;
          if ((asked & 8) != 0) options.late_update = true;
          EXPECT_EQ(first_of(ErrorOf("2bw", options)), refusal)
              << body << ' ' << p << ' ' << m << ' ' << asked;
        }
      }
    }
  }
}

TEST(PipeDream, StashesByAccumulation) {
  const auto delays = [](int m) {
    const Program program = Lower("pipedream", Sizes(4, m));
    std::vector<int> found;
    for (int s = 0; s < 4; ++s) {
      found.push_back(program.versions(s).gradient_delay);
      found.push_back(program.versions(s).weight_versions);
    }
    return found;
  };
  EXPECT_EQ(delays(2), (std::vector{2, 3, 1, 2, 1, 2, 0, 1}));
  EXPECT_EQ(delays(3), (std::vector{1, 2, 1, 2, 1, 2, 0, 1}));
  EXPECT_EQ(delays(8), (std::vector{1, 2, 1, 2, 1, 2, 0, 1}));
}

TEST(PipeDream, VerticalSyncUsesTheFirstStagesVersion) {
  for (int p = 1; p <= 12; ++p) {
    for (int m = 1; m < 20; ++m) {
      const Program program =
          Lower("pipedream", {.ranks = p, .microbatches = m, .vertical_sync = true}, 30);
      const int delay = CeilDiv(p - 1, m);
      for (int s = 0; s < p; ++s) {
        ASSERT_EQ(program.versions(s).gradient_delay, delay) << p << ' ' << m;
        ASSERT_EQ(program.versions(s).backward_delay, delay);
        ASSERT_EQ(program.versions(s).weight_versions, delay + 1);
        if (m > 1) continue;
        for (LaneWalk walk(program, s); !walk.done(); walk.Advance()) {
          const RunAction& a = walk.action();
          if (!IsForward(a.kind)) continue;
          ASSERT_EQ(a.step - program.WeightVersion(a), std::min<int64_t>(a.step, p - 1));
        }
      }
    }
  }
}

// Stashed zero-bubble orders: U waits for the last W, which comes late on late stages.
TEST(PipeDream, ZeroBubbleBodiesAreEquallyLateEverywhere) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m < 12; ++m) {
      for (const int slope : {1, 2}) {
        const Program program = Lower(
            "pipedream", {.ranks = p, .microbatches = m, .body = slope == 1 ? "zb-h1" : "zb-h2"});
        for (int s = 0; s < p; ++s) {
          ASSERT_EQ(program.versions(s).gradient_delay, CeilDiv(slope * (p - 1), m));
        }
      }
    }
  }
}

// Updates crossed by micro-batch i between F and B: ⌊i/m⌋ − ⌊(i − d)/m⌋.
TEST(Paci, DelayLiesBetweenFloorAndCeiling) {
  for (int p = 1; p <= 12; ++p) {
    for (int m = 1; m < 20; ++m) {
      const Program program = Lower("paci", Sizes(p, m), 40);
      for (int s = 0; s < p; ++s) {
        const int d = p - 1 - s;
        ASSERT_EQ(program.versions(s).gradient_delay, CeilDiv(d, m));
        ASSERT_EQ(program.versions(s).gradient_delay_min, d / m);
        ASSERT_EQ(program.versions(s).backward_delay, 0);
        ASSERT_EQ(program.versions(s).weight_versions, 1);
        for (LaneWalk walk(program, s); !walk.done(); walk.Advance()) {
          const RunAction& a = walk.action();
          if (!IsForward(a.kind) || a.microbatch < d) continue;
          ASSERT_EQ(a.step - program.WeightVersion(a),
                    FloorDiv(a.microbatch, m) - FloorDiv(a.microbatch - d, m));
        }
      }
    }
  }
}

TEST(Paci, BackwardsOfZeroBubbleBodiesAreLateToo) {
  const Program program = Lower("paci", {.ranks = 4, .microbatches = 1, .body = "zb-h1"});
  for (int s = 0; s < 4; ++s) EXPECT_EQ(program.versions(s).backward_delay, s);
}

TEST(Flush, HasOneVersionAndNoDelay) {
  for (const char* schedule : {"eager-1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2",
                               "zb-v", "zb-auto", "dualpipe", "dualpipe-v"}) {
    const Program program = Lower(schedule, Sizes(4, 8), 3);
    for (int s = 0; s < program.schedule().placed_stages(); ++s) {
      EXPECT_EQ(program.versions(s).gradient_delay, 0) << schedule;
      EXPECT_EQ(program.versions(s).backward_delay, 0) << schedule;
      EXPECT_EQ(program.versions(s).weight_versions, 1) << schedule;
    }
  }
}

// Any sizes that a generator accepts make a legal schedule; norms, barriers and reductions too.
TEST(Generators, AcceptedSizesAreLegal) {
  for (const Generator& generator : Generators()) {
    for (int p = 1; p <= 7; ++p) {
      for (int m = 1; m <= 16; ++m) {
        for (int extras = 0; extras < 2; ++extras) {
          GeneratorOptions options = Sizes(p, m);
          options.reduction = options.norm = extras == 1;
          try {
            Lower(std::string(generator.name), options);
          } catch (const ScheduleError& error) {
            // Only 2BW's own condition may be met by a finding.
            EXPECT_EQ(generator.name, "2bw") << p << ' ' << m << ' ' << error.what();
            EXPECT_LT(m, p - 1);
          } catch (const Error&) {  // refused by the generator, which says why
          }
        }
      }
    }
  }
}

TEST(Generators, RefuseWhatTheyCannotHonour) {
  const auto refuses = [](const char* schedule, const GeneratorOptions& options, const char* why) {
    EXPECT_NE(ErrorOf(schedule, options).find(why), std::string::npos)
        << schedule << ": " << ErrorOf(schedule, options);
  };
  refuses("gpipe", {.ranks = 4, .microbatches = 8, .warmup_slope = 2}, "takes no --warmup-slope");
  refuses("zb-h1", {.ranks = 4, .microbatches = 8, .chunks = 2}, "takes no --chunks");
  refuses("1f1b", {.ranks = 4, .microbatches = 8, .body = "zb-h1"}, "takes no --body");
  refuses("2bw", {.ranks = 4, .microbatches = 8, .vertical_sync = true}, "takes no vertical sync");
  refuses("2bw", {.ranks = 4, .microbatches = 8, .body = "zb-h3"}, "zb-h3 is not known");
  refuses("2bw", {.ranks = 4, .microbatches = 8, .warmup_slope = 2, .body = "zb-h1"},
          "own warm-up");
  refuses("1f1b", {.ranks = 4, .microbatches = 8, .warmup = {1, 2}}, "2 entries");
  refuses("1f1b", {.ranks = 4, .microbatches = 8, .warmup = {3, 2, 1, -1}}, "not between");
  refuses("interleaved-1f1b", Sizes(4, 9), "no multiple of 4");
  refuses("interleaved-1f1b", {.ranks = 4, .microbatches = 8, .chunks = 2, .group = 2},
          "at least 4 micro-batches");
  refuses("dualpipe", Sizes(3, 8), "must be even");
  refuses("dualpipe", Sizes(4, 6), "at least 8");
  refuses("dualpipe", Sizes(4, 9), "even number");
  refuses("dualpipe-v", Sizes(4, 7), "at least 8");
  refuses("zb-auto", {.ranks = 4, .microbatches = 8, .chunks = 3}, "two in a V");
  refuses("zb-auto", {.ranks = 4, .microbatches = 8, .memory_limit = 0.5}, "needs 1");
}

TEST(DualPipe, HoldersOfASliceExchangeGradients) {
  const Schedule schedule = Generate("dualpipe", Sizes(4, 8));
  ASSERT_EQ(schedule.groups.size(), 4u);
  for (int s = 0; s < 4; ++s) {
    const CollectiveGroup& group = schedule.groups[static_cast<size_t>(s)];
    EXPECT_EQ(group.purpose, CollectiveGroup::Purpose::kWeights);
    EXPECT_EQ(group.stages, (std::vector{s, 4 + s}));
  }
}

// Slots per lane that never delay.
TEST(SlotsThatNeverDelay, AreThoseOfTheTable) {
  for (int p = 2; p <= 6; ++p) {
    const int m = 4 * p;
    const auto expect = [&](const char* schedule, int forward, int backward,
                            GeneratorOptions options = {}) {
      options.ranks = p;
      options.microbatches = m;
      const Program program = Lower(schedule, options, 4);
      const std::vector<int> slots = NeverDelayingSlots(program);
      int most[2] = {};
      for (size_t lane = 0; lane < slots.size(); ++lane) {
        int& most_of = most[program.lanes()[lane].payload == ActionKind::kSendForward ? 0 : 1];
        most_of = std::max(most_of, slots[lane]);
      }
      EXPECT_EQ(most[0], forward) << schedule << ' ' << p;
      EXPECT_EQ(most[1], backward) << schedule << ' ' << p;
    };
    expect("looped-bfs", m, m, {.chunks = 2});
    expect("interleaved-1f1b", 2 * p - 1, 2 * p - 1, {.chunks = 2});
    expect("zb-h1", p, p);
    expect("zb-h2", 2 * p - 1, 2 * p - 1);
    expect("zb-v", 2 * p - 1, p);
    expect("dualpipe-v", 2 * p - 1, p);
    // A warm-up twice as steep: w_s + 1.
    expect("2bw", 2 * (p - 1) + 1, 2 * (p - 1) + 1, {.warmup_slope = 2});
  }
}

}  // namespace
}  // namespace pipelag
