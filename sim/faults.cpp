// Goodput under failures: in closed form and event by event.
#include "sim/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/error.h"
#include "models/random.h"
#include "sim/event_queue.h"

namespace pipelag {
namespace {

double Mtbf(const FaultModel& model) {
  return static_cast<double>(model.rank_mtbf.count()) / model.ranks;
}

/// −ln u for u in (0, 1), from arithmetic alone, so that every machine agrees to the last bit.
double MinusLog(double u) {
  constexpr double kLog2 = 0x1.62e42fefa39efp-1;
  int exponent = 0;
  const double mantissa = std::frexp(u, &exponent);  // in [0.5, 1)
  const double z = (mantissa - 1) / (mantissa + 1);  // ln m = 2·artanh z, |z| ≤ 1/3
  double sum = 0;
  for (int n = 41; n >= 1; n -= 2) sum = sum * z * z + 1.0 / n;
  return -(exponent * kLog2 + 2 * z * sum);
}

/// The failures of all ranks and the one thing that the run does next.
class FaultyRun {
 public:
  FaultyRun(const FaultModel& model, uint64_t seed)
      : model_(model), seed_(seed), drawn_(static_cast<size_t>(model.ranks)) {
    for (int rank = 0; rank < model.ranks; ++rank) DrawFailure(rank);
  }

  /// Plays until the next checkpoint is written; returns when that is.
  int64_t NextCheckpoint() {
    const int64_t work = model_.checkpoint_interval.count() + model_.checkpoint_cost.count();
    Begin(kWorked, work);
    for (;;) {
      const QueuedEvent event = events_.Pop();
      if (event.kind() != kFailed && event.generation != attempt_) continue;
      now_ = event.time;
      switch (static_cast<EventKind>(event.kind())) {
        case kFailed:
          ++failures_;
          DrawFailure(event.subject);
          Begin(kRestarted, model_.restart.count());
          break;
        case kRestarted:
          Begin(kWorked, work);
          break;
        case kWorked:
          return now_;
      }
    }
  }

  int64_t failures() const { return failures_; }

 private:
  enum EventKind : unsigned { kFailed, kRestarted, kWorked };

  void Begin(EventKind kind, int64_t takes) { events_.Push(now_ + takes, kind, 0, ++attempt_); }

  void DrawFailure(int rank) {
    const uint64_t bits =
        RandomBits(seed_, static_cast<uint64_t>(rank), drawn_[static_cast<size_t>(rank)]++);
    const double lives =
        MinusLog(UniformOpen(bits)) * static_cast<double>(model_.rank_mtbf.count());
    // Whoever outlives the clock never fails.
    const double end = static_cast<double>(now_) + lives;
    if (end < 9e18) events_.Push(now_ + static_cast<int64_t>(lives + 0.5), kFailed, rank);
  }

  const FaultModel& model_;
  uint64_t seed_;
  std::vector<uint64_t> drawn_;
  EventQueue events_;
  int64_t now_ = 0;
  uint32_t attempt_ = 0;
  int64_t failures_ = 0;
};

}  // namespace

void CheckFaults(const FaultModel& model) {
  const auto positive = [](const char* flag, int64_t value) {
    if (value <= 0) throw Error(fmt::format("{} must be positive", flag));
  };
  positive("the number of ranks", model.ranks);
  positive("--mtbf", model.rank_mtbf.count());
  positive("--checkpoint-interval", model.checkpoint_interval.count());
  if (model.checkpoint_cost.count() < 0) throw Error("--checkpoint-cost must not be negative");
  if (model.restart.count() < 0) throw Error("--restart must not be negative");
  const double attempt = (static_cast<double>(model.checkpoint_interval.count()) +
                          static_cast<double>(model.checkpoint_cost.count()) +
                          static_cast<double>(model.restart.count())) /
                         Mtbf(model);
  if (attempt > 20) {
    throw Error(
        fmt::format("with a failure every {} (--mtbf) a run would hardly ever get from one "
                    "checkpoint to the next",
                    FormatDuration(Nanoseconds{static_cast<int64_t>(Mtbf(model))})));
  }
}

double ExpectedGoodput(const FaultModel& model) {
  CheckFaults(model);
  const double m = Mtbf(model);
  const double work = static_cast<double>(model.checkpoint_interval.count());
  const double attempt = work + static_cast<double>(model.checkpoint_cost.count());
  const double restart = static_cast<double>(model.restart.count());
  return work / (m * std::exp(restart / m) * std::expm1(attempt / m));
}

Nanoseconds BestCheckpointInterval(const FaultModel& model) {
  const double m = Mtbf(model);
  const double cost = static_cast<double>(model.checkpoint_cost.count()) / m;
  double low = 0;
  double high = 1;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (std::exp(-middle - cost) < 1 - middle ? low : high) = middle;
  }
  return Nanoseconds{static_cast<int64_t>(low * m + 0.5)};
}

Nanoseconds YoungCheckpointInterval(const FaultModel& model) {
  return Nanoseconds{static_cast<int64_t>(
      std::sqrt(2 * static_cast<double>(model.checkpoint_cost.count()) * Mtbf(model)) + 0.5)};
}

FaultRun SimulateFaults(const FaultModel& model, int intervals, uint64_t seed) {
  CheckFaults(model);
  if (intervals < 2) throw Error("a run with failures needs at least 2 checkpoint intervals");
  FaultyRun run(model, seed);
  double sum = 0;
  double squares = 0;
  int64_t last = 0;
  for (int i = 0; i < intervals; ++i) {
    const int64_t end = run.NextCheckpoint();
    const auto takes = static_cast<double>(end - last);
    last = end;
    sum += takes;
    squares += takes * takes;
  }
  const double mean = sum / intervals;
  const double variance = std::max(0.0, (squares - sum * mean) / (intervals - 1));
  FaultRun result;
  result.goodput = static_cast<double>(model.checkpoint_interval.count()) / mean;
  result.standard_error = result.goodput * std::sqrt(variance / intervals) / mean;
  result.failures = run.failures();
  return result;
}

}  // namespace pipelag
