// The table of exact step times, makespans and bubbles: F = I = W = 1000 per stage, B = 2000.
#include <gtest/gtest.h>

#include "tests/sim/case.h"

namespace pipelag {
namespace {

struct Row {
  Case configuration;
  StepTime step;
  int64_t makespan = 0;  ///< of one step; 0: not part of the row
};

void ExpectRow(const Row& row) {
  const Case& c = row.configuration;
  const Simulation s = SimulateCase(c, 1);
  EXPECT_EQ(s.steady.step_time.numerator, row.step.numerator) << c.schedule << ' ' << c.latency;
  EXPECT_EQ(s.steady.step_time.denominator, row.step.denominator) << c.schedule;
  if (row.makespan > 0) {
    EXPECT_EQ(s.metrics.makespan.count(), row.makespan) << c.schedule << ' ' << c.latency;
  }
}

// For schedules with a flush the makespan of one step is the same number unless it is given apart.
TEST(Table, SchedulesWithAFlush) {
  const Row rows[] = {
      {{.schedule = "gpipe", .latency = 100, .update = 30}, {33630}, 33630},
      {{.schedule = "1f1b", .latency = 100}, {34600}, 34600},
      {{.schedule = "1f1b", .m = 2, .latency = 100}, {15600}, 15600},
      {{.schedule = "1f1b", .p = 1, .m = 3, .latency = 100, .update = 30}, {9030}, 9030},
      {{.schedule = "eager-1f1b", .latency = 100}, {33600}, 33600},
      {{.schedule = "interleaved-1f1b", .latency = 100, .options = {.chunks = 2}}, {58400}, 58400},
      {{.schedule = "looped-bfs", .latency = 100, .options = {.chunks = 2}}, {57600}, 57600},
      {{.schedule = "zb-h1", .latency = 100}, {28200}, 28200},
      {{.schedule = "zb-h2"}, {24000}, 27000},
      {{.schedule = "zb-h2", .options = {.barrier = true}}, {27000}, 27000},
      {{.schedule = "zb-h2", .latency = 100}, {24600}, 27300},
      {{.schedule = "zb-v"}, {48000}, 51000},
      {{.schedule = "zb-v", .options = {.barrier = true}}, {51000}, 51000},
      {{.schedule = "zb-v", .latency = 100}, {49600}, 52300},
      {{.schedule = "dualpipe", .overlap = 2600}, {24400}, 24400},
      {{.schedule = "dualpipe-v", .latency = 100, .overlap = 3000}, {55600}, 55600},
  };
  for (const Row& row : rows) ExpectRow(row);
}

TEST(Table, SchedulesWithoutAFlush) {
  const GeneratorOptions zb_h1{.body = "zb-h1"};
  const Row rows[] = {
      {{.schedule = "pipedream", .m = 1, .latency = 100, .update = 50}, {6325, 2}},
      {{.schedule = "pipedream", .m = 3, .latency = 100}, {9450}},
      {{.schedule = "paci", .m = 2, .latency = 100, .update = 50}, {6325}},
      {{.schedule = "2bw", .m = 5, .latency = 100}, {15750}},
      {{.schedule = "2bw", .p = 64, .m = 512, .latency = 100}, {1636800}},
      {{.schedule = "2bw", .p = 8, .m = 32, .latency = 2000, .options = {.warmup_slope = 2}},
       {332800, 3}},
      {{.schedule = "2bw", .p = 8, .m = 32, .latency = 2000, .options = {.warmup_slope = 3}},
       {96000}},
      {{.schedule = "2bw", .m = 4, .latency = 700, .occupancy = 4000}, {40200}},
      {{.schedule = "2bw", .latency = 1000, .options = {.chunks = 2}}, {48000}},
      {{.schedule = "2bw", .latency = 2000, .options = {.chunks = 2}}, {59000}},
      {{.schedule = "2bw", .latency = 100, .options = zb_h1}, {24000}},
      {{.schedule = "2bw", .latency = 600, .options = zb_h1}, {25200}},
      {{.schedule = "2bw",
        .update = 50,
        .reduction = 1500,
        .options = {.reduction = true, .late_update = false}},
       {25550}},
      {{.schedule = "2bw",
        .update = 50,
        .reduction = 1500,
        .options = {.reduction = true, .late_update = true}},
       {24050}},
      {{.schedule = "2bw", .options = {.norm = true, .late_update = false}}, {30000}},
      {{.schedule = "2bw", .options = {.norm = true, .late_update = true}}, {24000}},
  };
  for (const Row& row : rows) ExpectRow(row);
  // What it gains by its warm-up: 1F1B's order loses where the others do not.
  EXPECT_EQ(Step({.schedule = "2bw", .latency = 100}), Fraction(25200));
}

TEST(Table, Bubbles) {
  struct BubbleRow {
    Case configuration;
    int64_t steps;
    double idle_of_makespan, idle_over_ideal, of_span, steady_state;
  };
  const BubbleRow rows[] = {
      {{.schedule = "gpipe"}, 1, 3.0 / 11, 3.0 / 8, 3.0 / 11, 3.0 / 11},
      {{.schedule = "zb-h1"}, 1, 1.0 / 9, 1.0 / 8, 1.0 / 9, 1.0 / 9},
      {{.schedule = "zb-h2"}, 1, 1.0 / 9, 1.0 / 8, 0, 0},
      {{.schedule = "zb-v"}, 1, 1.0 / 17, 1.0 / 16, 0, 0},
      {{.schedule = "dualpipe", .overlap = 2600}, 1, 4.0 / 61, 4.0 / 57, 4.0 / 61, 4.0 / 61},
      {{.schedule = "2bw", .m = 5, .latency = 100},
       10,
       14.0 / 139,
       14.0 / 125,
       14.0 / 139,
       1.0 / 21},
  };
  for (const BubbleRow& row : rows) {
    const Bubble bubble = SimulateCase(row.configuration, row.steps).metrics.bubble;
    EXPECT_EQ(bubble.idle_of_makespan, row.idle_of_makespan) << row.configuration.schedule;
    EXPECT_EQ(bubble.idle_over_ideal, row.idle_over_ideal) << row.configuration.schedule;
    EXPECT_EQ(bubble.of_span, row.of_span) << row.configuration.schedule;
    EXPECT_EQ(bubble.steady_state, row.steady_state) << row.configuration.schedule;
  }
}

// A flush barrier matters only where ranks would start the next step at different times.
TEST(Table, FlushBarrierMattersForZeroBubbleOnly) {
  for (const char* schedule : {"gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs",
                               "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"}) {
    const StepTime none = Step({.schedule = schedule});
    const StepTime global = Step({.schedule = schedule, .options = {.barrier = true}});
    const bool overlaps = std::string(schedule) == "zb-h2" || std::string(schedule) == "zb-v";
    EXPECT_EQ(none != global, overlaps) << schedule;
  }
}

// Late U: step = m(F+B) + u + max(0, ar − (m − w_0)(F+B)); early U: m(F+B) + u + ar. Where w_0 = 0
// a late U does not stand on the way from one AR to the next, so p ≥ 2.
TEST(Table, ReductionOf2BWFitsTheSlack) {
  for (const int p : {2, 4, 7}) {
    for (const int m : {6, 9, 12}) {
      for (const int64_t reduction : {0, 1500, 9000, 20000, 50000}) {
        const int64_t slack = int64_t{m - (p - 1)} * 3000;
        EXPECT_EQ(Step({.schedule = "2bw",
                        .p = p,
                        .m = m,
                        .update = 50,
                        .reduction = reduction,
                        .options = {.reduction = true, .late_update = true}}),
                  Fraction(m * 3000 + 50 + std::max<int64_t>(0, reduction - slack)))
            << p << ' ' << m << ' ' << reduction;
        EXPECT_EQ(Step({.schedule = "2bw",
                        .p = p,
                        .m = m,
                        .update = 50,
                        .reduction = reduction,
                        .options = {.reduction = true, .late_update = false}}),
                  Fraction(m * 3000 + 50 + reduction));
      }
    }
  }
}

}  // namespace
}  // namespace pipelag
