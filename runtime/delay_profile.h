// Delay profiles by name: how late the gradients of every stage are, by hand or as a schedule makes
// them. Knows neither optimizers nor data.
#pragma once

#include <string>
#include <vector>

#include "runtime/serial_plan.h"

namespace pipelag {

struct DelayProfile {
  std::string name;  ///< "1" also if it was given stage by stage
  SerialPlan plan;

  /// Every micro-batch reads the newest weights.
  bool synchronous() const;
};

/// What a profile is laid over.
struct ProfileSetting {
  int stages = 1;  ///< of a profile by hand; a schedule brings its own
  int microbatches = 1;
  int64_t steps = 1;
  int64_t synchronous_steps = 0;
  bool tied = false;  ///< the embedding: schedules that cannot wait for its exchange are refused
};

/// `text` is a delay ("0", "1"), a delay per stage ("3:2:1:0"), or SCHEDULE@RANKSxMICROBATCHES
/// ("pipedream@4x1", "2bw@4x8"). Equal delays on all stages make a plan of one stage: how the
/// network is cut makes no difference to them. Throws Error naming `text`.
DelayProfile MakeProfile(const std::string& text, const ProfileSetting& setting);

/// Every name of the delays that a schedule makes, the simplest first: the last is always
/// NAME@RANKSxMICROBATCHES.
std::vector<std::string> ProfileNamesOf(const Program& program);

}  // namespace pipelag
