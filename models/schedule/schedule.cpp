#include "models/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "models/schedule/text.h"

namespace pipelag {
namespace {

std::string Sentence(const std::string& name, const std::vector<Finding>& findings) {
  CHECK(!findings.empty());
  const bool alone = findings.size() == 1;
  return fmt::format("{}: {}{}", name, findings.front().message,
                     alone ? "" : fmt::format(" (one of {} findings)", findings.size()));
}

std::string GridIfAnywhere(const Schedule& schedule, const std::vector<Finding>& findings) {
  const bool anywhere = std::any_of(findings.begin(), findings.end(),
                                    [](const Finding& finding) { return finding.rank >= 0; });
  return anywhere ? FormatGrid(schedule, findings) : std::string();
}

/// First gradient of micro-batch 0 on `placed`, as (repetition of the body, position).
std::pair<int64_t, size_t> FirstGradient(const Schedule& schedule, int placed) {
  const auto rank = static_cast<size_t>(schedule.placement[static_cast<size_t>(placed)]);
  const auto& body = schedule.body[rank];
  std::pair<int64_t, size_t> first{std::numeric_limits<int64_t>::max(), 0};
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i].stage != placed || !YieldsInputGradient(body[i].kind)) continue;
    first = std::min(first, {-FloorDiv(body[i].microbatch, schedule.microbatches), i});
  }
  return first;
}

}  // namespace

std::string_view PolicyName(WeightPolicy policy) {
  switch (policy) {
    case WeightPolicy::kFlush:
      return "flush";
    case WeightPolicy::kStashed:
      return "stashed";
    case WeightPolicy::kVerticalSync:
      return "vertical-sync";
    case WeightPolicy::kDoubleBuffered:
      return "double-buffered";
    case WeightPolicy::kLatest:
      return "latest";
  }
  CHECK(false);
}

int Schedule::StreamOfMicrobatch(int64_t microbatch) const {
  if (streams == 1) return 0;
  return static_cast<int>(FloorMod(microbatch, microbatches) / microbatches_per_stream());
}

int64_t WarmUpForwards(const Schedule& schedule) {
  int64_t most = 0;
  for (int stream = 0; stream < schedule.streams; ++stream) {
    const int placed = schedule.PlacedStage(stream, 0);
    const auto [block, position] = FirstGradient(schedule, placed);
    const auto& body =
        schedule.body[static_cast<size_t>(schedule.placement[static_cast<size_t>(placed)])];
    int64_t forwards = 0;
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i].stage != placed || !IsForward(body[i].kind)) continue;
      // It stands in the run from the repetition on in which its number is not negative.
      const int64_t first = -FloorDiv(body[i].microbatch, schedule.microbatches);
      const int64_t last = block - (i < position ? 0 : 1);
      forwards += std::max<int64_t>(0, last - first + 1);
    }
    most = std::max(most, forwards);
  }
  return std::max<int64_t>(0, most - 1);
}

int64_t DefaultSteps(const Schedule& schedule) {
  if (schedule.flushes()) return 1;
  const int64_t m = schedule.microbatches;
  return std::max<int64_t>(10, (2 * WarmUpForwards(schedule) + m - 1) / m + 10);
}

ScheduleError::ScheduleError(const Schedule& schedule, std::vector<Finding> findings)
    : Error(Sentence(schedule.name, findings)),
      findings_(std::move(findings)),
      grid_(GridIfAnywhere(schedule, findings_)) {}

ScheduleError::ScheduleError(const std::string& name, std::vector<Finding> findings,
                             std::string grid)
    : Error(Sentence(name, findings)), findings_(std::move(findings)), grid_(std::move(grid)) {}

ScheduleError ScheduleError::InFile(const std::string& file) const {
  return ScheduleError(file, findings_, grid_);
}

}  // namespace pipelag
