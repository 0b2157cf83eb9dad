// Delays, live versions and peaks: derived figures against the tables of the literature.
#include <gtest/gtest.h>

#include "models/schedule/generators.h"
#include "models/schedule/program.h"
#include "models/schedule/slots.h"

namespace pipelag {
namespace {

Program Lower(const std::string& schedule, int p, int m, int64_t steps = 1, int slope = 1) {
  return Program(Generate(schedule, {.ranks = p, .microbatches = m, .warmup_slope = slope}), steps);
}

TEST(Versions, FlushSchedulesHaveNoDelay) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = 1; m <= 9; ++m) {
        const Program program = Lower(schedule, p, m);
        for (int s = 0; s < p; ++s) {
          EXPECT_EQ(program.versions(s).gradient_delay, 0);
          EXPECT_EQ(program.versions(s).backward_delay, 0);
          EXPECT_EQ(program.versions(s).weight_versions, 1);
          EXPECT_EQ(program.versions(s).gradient_buffers, 1);
        }
      }
    }
  }
}

TEST(Versions, PipeDreamStashes) {
  for (int p = 1; p <= 12; ++p) {
    for (int m = 1; m < 20; ++m) {
      const Program program = Lower("pipedream", p, m);
      for (int s = 0; s < p; ++s) {
        const int d = p - 1 - s;
        const int delay = (d + m - 1) / m;
        ASSERT_EQ(program.versions(s).gradient_delay, delay) << p << ' ' << m << ' ' << s;
        ASSERT_EQ(program.versions(s).backward_delay, delay);
        ASSERT_EQ(program.versions(s).weight_versions, delay + 1);
      }
    }
  }
}

TEST(Versions, PipeDreamRampsUp) {
  const Program program = Lower("pipedream", 4, 1, 6);
  std::vector<int64_t> delays;
  for (LaneWalk walk(program, 0); !walk.done(); walk.Advance()) {
    const RunAction& a = walk.action();
    if (IsForward(a.kind)) delays.push_back(a.step - program.WeightVersion(a));
  }
  EXPECT_EQ(delays, (std::vector<int64_t>{0, 1, 2, 3, 3, 3}));
}

TEST(Versions, DoubleBufferedIsOneStepLateEverywhere) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = std::max(1, p - 1); m <= 12; ++m) {
      const Program program = Lower("2bw", p, m, 4);
      for (int s = 0; s < p; ++s) {
        EXPECT_EQ(program.versions(s).gradient_delay, 1);
        EXPECT_EQ(program.versions(s).gradient_delay_min, 1);
        EXPECT_EQ(program.versions(s).backward_delay, 1);
        EXPECT_EQ(program.versions(s).weight_versions, 2);
        EXPECT_EQ(program.versions(s).gradient_buffers, 1);
      }
      for (int rank = 0; rank < p; ++rank) {
        for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
          const RunAction& a = walk.action();
          if (a.kind == ActionKind::kUpdate) continue;
          EXPECT_EQ(program.WeightVersion(a), std::max<int64_t>(0, a.step - 1));
        }
      }
    }
  }
}

TEST(Versions, LateUpdatesCostASecondAccumulator) {
  const GeneratorOptions late{.ranks = 4, .microbatches = 8, .late_update = true};
  const Program program(Generate("2bw", late), 1);
  for (int s = 0; s < 4; ++s) {
    const int warm_up = 3 - s;
    EXPECT_EQ(program.versions(s).gradient_buffers, 8 > warm_up ? 2 : 1);
    EXPECT_EQ(program.versions(s).weight_versions, 2);
  }
}

TEST(Versions, DoubleBufferedNeedsEnoughMicrobatches) {
  for (int slope = 1; slope <= 2; ++slope) {
    for (int p = 2; p <= 10; ++p) {
      const int least = slope * (p - 1);
      EXPECT_NO_THROW(Lower("2bw", p, least, 1, slope));
      if (least == 1) continue;
      try {
        Lower("2bw", p, least - 1, 1, slope);
        FAIL() << p;
      } catch (const ScheduleError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("version 1 of stage 0 does not exist yet"), std::string::npos) << text;
        EXPECT_NE(text.find("are too few"), std::string::npos) << text;
        EXPECT_NE(error.grid().find(">0F"), std::string::npos) << error.grid();
      }
    }
  }
}

TEST(Versions, LateUpdateWithTooFewMicrobatchesDeadlocks) {
  const GeneratorOptions late{.ranks = 4, .microbatches = 2, .norm = true, .late_update = true};
  EXPECT_THROW(Program(Generate("2bw", late), 1), ScheduleError);
}

TEST(Steps, EnoughToLeaveTheWarmUp) {
  for (int p = 1; p <= 9; ++p) {
    for (int slope = 1; slope <= 3; ++slope) {
      for (int m = 1; m <= 12; ++m) {
        const GeneratorOptions options{.ranks = p, .microbatches = m, .warmup_slope = slope};
        const int64_t w = int64_t{slope} * (p - 1);
        const Schedule endless = Generate("pipedream", options);
        EXPECT_EQ(WarmUpForwards(endless), w);
        EXPECT_EQ(DefaultSteps(endless), std::max<int64_t>(10, (2 * w + m - 1) / m + 10));
        EXPECT_EQ(WarmUpForwards(Generate("1f1b", options)), std::min<int64_t>(w, m - 1));
        EXPECT_EQ(DefaultSteps(Generate("1f1b", options)), 1);
        const GeneratorOptions sizes{.ranks = p, .microbatches = m};
        EXPECT_EQ(WarmUpForwards(Generate("gpipe", sizes)), m - 1);
      }
    }
  }
}

TEST(Peaks, InFlightPerStage) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 18; ++m) {
      const Program gpipe = Lower("gpipe", p, m, 3);
      const Program flush = Lower("1f1b", p, m, 3);
      for (int s = 0; s < p; ++s) {
        EXPECT_EQ(gpipe.PeakInFlight(s), m);
        EXPECT_EQ(flush.PeakInFlight(s), std::min(m, p - s));
        // Also where the run is shorter than the pipeline.
        for (const int steps : {1, 2, 20}) {
          const Program endless = Lower("pipedream", p, m, steps);
          EXPECT_EQ(endless.PeakInFlight(s), std::min(m * steps, p - s)) << p << m << s << steps;
        }
      }
    }
  }
}

TEST(Walk, LaysTheBodyOverAnyNumberOfSteps) {
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    for (const int steps : {1, 2, 3, 7}) {
      const Program program = Lower(schedule, 4, 3, steps);
      for (int rank = 0; rank < 4; ++rank) {
        std::vector<int> forwards(static_cast<size_t>(3 * steps));
        std::vector<int> backwards(static_cast<size_t>(3 * steps));
        int64_t updates = 0;
        for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
          const RunAction& a = walk.action();
          if (a.kind == ActionKind::kForward) ++forwards[static_cast<size_t>(a.microbatch)];
          if (a.kind == ActionKind::kBackward) ++backwards[static_cast<size_t>(a.microbatch)];
          if (a.kind == ActionKind::kUpdate) {
            EXPECT_EQ(a.step, updates++);
          }
          if (a.kind != ActionKind::kUpdate) {
            EXPECT_EQ(a.step, a.microbatch / 3);
          }
        }
        EXPECT_EQ(updates, steps);
        EXPECT_EQ(forwards, std::vector<int>(forwards.size(), 1));
        EXPECT_EQ(backwards, std::vector<int>(backwards.size(), 1));
      }
    }
  }
}

// 4.14: slots per lane that never delay.
TEST(Slots, OfOneFOneBAreTheWarmUpPlusOne) {
  for (const char* schedule : {"1f1b", "pipedream", "2bw"}) {
    for (int p = 2; p <= 8; ++p) {
      const Program program = Lower(schedule, p, 3 * p, 9);
      const std::vector<int> slots = NeverDelayingSlots(program);
      for (int s = 0; s + 1 < p; ++s) {
        EXPECT_EQ(slots[static_cast<size_t>(program.ForwardLane(s))], p - 1 - s + 1) << schedule;
      }
    }
  }
}

TEST(Slots, OfGpipeAreAllMicrobatches) {
  for (int p = 2; p <= 6; ++p) {
    const Program program = Lower("gpipe", p, 7, 3);
    for (const int slots : NeverDelayingSlots(program)) EXPECT_EQ(slots, 7);
  }
}

}  // namespace
}  // namespace pipelag
