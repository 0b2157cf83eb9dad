#include "models/schedule/schedule.h"

#include "models/schedule/text.h"

namespace pipelag {
namespace {

std::string Describe(const Schedule& schedule, const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    if (!text.empty()) text += '\n';
    text += finding.message;
  }
  const bool anywhere = [&] {
    for (const Finding& finding : findings) {
      if (finding.rank >= 0) return true;
    }
    return false;
  }();
  if (anywhere) text += '\n' + FormatGrid(schedule, findings);
  return text;
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

ScheduleError::ScheduleError(const Schedule& schedule, std::vector<Finding> findings)
    : Error(Describe(schedule, findings)), findings_(std::move(findings)) {}

}  // namespace pipelag
