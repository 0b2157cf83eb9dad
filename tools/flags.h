// The flags that several subcommands share, and what they mean: which schedules, what they cost.
// Must not know what is done with either.
#pragma once

#include <vector>

#include "models/costs.h"
#include "models/schedule/generators.h"
#include "models/schedule/program.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --schedule, --ranks, --microbatches and the variants of a schedule.
std::vector<Flag> ScheduleFlags();

/// --steps.
Flag StepsFlag();

/// --forward … --costs, and --reduction.
std::vector<Flag> CostFlags();

/// Throws Error, giving the reason, if times are given and no generator of --schedule decides by
/// them.
void RefuseUselessTimes(const Arguments& arguments, const std::string& reason);

/// --warm-up.
Flag WarmUpFlag();
/// Steps to leave out, 1 if not given.
int64_t WarmUpOf(const Arguments& arguments);
/// Throws Error if --warm-up leaves nothing of so many steps.
void CheckLeavesSteps(const Arguments& arguments, int64_t steps);

/// The schedules of --schedule in order: known names generated, `.csv` files read. Not checked yet.
struct NamedSchedule {
  Schedule schedule;
  std::string file;              ///< empty for a generated one
  std::vector<Fact> facts = {};  ///< of a generated one: what is known in closed form
};
/// A flag that none of them has a use for is an Error, unless one of `beside` has.
std::vector<NamedSchedule> SchedulesOf(const Arguments& arguments,
                                       const std::vector<std::string>& beside = {});

/// Throws Error if --overlap is given but none of the schedules overlaps anything.
void RefuseUselessOverlap(const std::vector<NamedSchedule>& schedules, const Arguments& arguments);

/// What `make` returns. What it throws about the schedule names the file that it came from.
template <class Make>
auto InFileOf(const NamedSchedule& named, Make make) {
  try {
    return make();
  } catch (const ScheduleError& error) {
    if (named.file.empty()) throw;
    throw error.InFile(named.file);
  }
}

/// Checked and lowered, for --steps or the default number of steps. A ScheduleError names the file.
Program Lower(const NamedSchedule& named, const Arguments& arguments);

/// Times per stage by the flags, over those of --costs, over `modelled` if it is not null; 1 ms and
/// 2 ms if there are none at all.
Costs CostsOf(const Arguments& arguments, int stages, const Costs* modelled = nullptr);

/// Updates and links by the flags, over what `costs` says.
void OverrideLinks(const Arguments& arguments, int stages, Costs& costs);

/// The same for generators.
GivenCosts GivenCostsOf(const Costs& costs);

/// Times of the collectives, as ActionTimes wants them.
std::vector<Nanoseconds> ReductionOf(const Arguments& arguments);

/// Throws Error with `why` if one of the flags was given on the command line. In a job file it may
/// be meant for another subcommand.
void RefuseGiven(const Arguments& arguments, const std::vector<Flag>& flags,
                 const std::string& why);

std::vector<Flag> Concatenate(std::vector<std::vector<Flag>> groups);

}  // namespace pipelag
