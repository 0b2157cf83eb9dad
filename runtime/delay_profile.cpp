#include "runtime/delay_profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "models/schedule/generators.h"
#include "models/units.h"

namespace pipelag {
namespace {

constexpr int64_t kMostDelay = 1'000'000;

int CountIn(const std::string& text, const std::string& part) {
  const int64_t count = ParseInteger(part);
  if (count < 1 || count > kMostDelay) {
    throw Error(fmt::format("delay profile '{}': '{}' is not a count", text, part));
  }
  return static_cast<int>(count);
}

DelayProfile OfSchedule(const std::string& text, size_t at, const ProfileSetting& setting) {
  const std::string sizes = text.substr(at + 1);
  const size_t cross = sizes.find('x');
  if (cross == std::string::npos) {
    throw Error(
        fmt::format("delay profile '{}': behind '@' stands RANKSxMICROBATCHES, as in "
                    "pipedream@4x1",
                    text));
  }
  GeneratorOptions options;
  options.ranks = CountIn(text, sizes.substr(0, cross));
  options.microbatches = CountIn(text, sizes.substr(cross + 1));
  options.tied = setting.tied;
  return {text, PlanOf(Program(Generate(text.substr(0, at), options), setting.steps))};
}

DelayProfile ByHand(const std::string& text, const ProfileSetting& setting) {
  std::vector<int> delays;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const int64_t delay = ParseInteger(text.substr(begin, end - begin));
    if (delay < 0 || delay > kMostDelay) {
      throw Error(fmt::format("delay profile '{}': a delay is a number of updates from 0 to {}",
                              text, kMostDelay));
    }
    delays.push_back(static_cast<int>(std::min(delay, setting.steps)));
    begin = end + 1;
  }
  if (delays.size() != 1 && delays.size() != static_cast<size_t>(setting.stages)) {
    throw Error(fmt::format("delay profile '{}' names {} stages, but there are {}", text,
                            delays.size(), setting.stages));
  }
  const auto differs = [&](int delay) { return delay != delays[0]; };
  if (std::none_of(delays.begin(), delays.end(), differs)) {
    return {text.substr(0, text.find(':')),
            PlanOfDelays({delays[0]}, 1, setting.microbatches, setting.steps)};
  }
  return {text, PlanOfDelays(delays, setting.stages, setting.microbatches, setting.steps)};
}

}  // namespace

bool DelayProfile::synchronous() const {
  const auto late = [](int delay) { return delay != 0; };
  return std::none_of(plan.stages.begin(), plan.stages.end(), [&](const SerialStage& stage) {
    return std::any_of(stage.forward_delay.begin(), stage.forward_delay.end(), late) ||
           std::any_of(stage.backward_delay.begin(), stage.backward_delay.end(), late);
  });
}

DelayProfile MakeProfile(const std::string& text, const ProfileSetting& setting) {
  const size_t at = text.find('@');
  DelayProfile profile;
  try {
    profile = at == std::string::npos ? ByHand(text, setting) : OfSchedule(text, at, setting);
  } catch (const Error& error) {
    const std::string said = error.what();
    if (said.starts_with("delay profile")) throw;
    throw Error(fmt::format("delay profile '{}': {}", text, said));
  }
  profile.plan.synchronous_steps = setting.synchronous_steps;
  return profile;
}

std::vector<std::string> ProfileNamesOf(const Program& program) {
  const Schedule& schedule = program.schedule();
  std::vector<int> delays;
  bool constant = true;  // within every stage
  for (int stage = 0; stage < schedule.placed_stages(); ++stage) {
    const StageVersions& versions = program.versions(stage);
    delays.push_back(versions.gradient_delay);
    constant = constant && versions.gradient_delay_min == versions.gradient_delay &&
               versions.backward_delay == versions.gradient_delay;
  }
  std::vector<std::string> names;
  if (constant) {
    const bool uniform = std::count(delays.begin(), delays.end(), delays[0]) ==
                         static_cast<std::ptrdiff_t>(delays.size());
    names.push_back(uniform ? fmt::format("{}", delays[0])
                            : fmt::format("{}", fmt::join(delays, ":")));
  }
  names.push_back(fmt::format("{}@{}x{}", schedule.name, schedule.ranks, schedule.microbatches));
  return names;
}

}  // namespace pipelag
