#include "tools/schedule_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/schedule/text.h"

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

Sends SendsOf(const Arguments& arguments) {
  constexpr std::string_view kSends[] = {"rendezvous", "eager"};
  return arguments.Choice("sends", kSends) == "eager" ? Sends::kEager : Sends::kRendezvous;
}

template <Purpose purpose>
bool IsOf(const CollectiveGroup& group) {
  return group.purpose == purpose;
}

/// What a flag has every update wait for.
struct Awaited {
  const char* flag;
  const char* what;
  bool (*is_it)(const CollectiveGroup& group);
  bool (*wanted)(const Arguments& arguments, const Schedule& schedule);
};
constexpr auto kAlways = [](const Arguments&, const Schedule&) { return true; };
constexpr Awaited kAwaited[] = {
    {"reduction", "AR of gradients", MovesGradients, kAlways},
    {"gradient-bytes", "AR of gradients", MovesGradients, kAlways},
    {"replicas", "AR of gradients", MovesGradients,
     [](const Arguments& arguments, const Schedule&) { return ReplicasReduce(arguments); }},
    {"tied", "AR of a tensor that first and last stage share", IsOf<Purpose::kShared>,
     [](const Arguments&, const Schedule& schedule) { return schedule.stages > 1; }},
    {"clip-norm", "AR of the norm of gradients", IsOf<Purpose::kNorm>,
     [](const Arguments& arguments, const Schedule&) { return WantsNorm(arguments); }},
    {"flush-barrier", "flush barrier", IsOf<Purpose::kBarrier>,
     [](const Arguments& arguments, const Schedule&) { return WantsBarrier(arguments); }},
};

}  // namespace

bool WantsNorm(const Arguments& arguments) {
  if (!arguments.Has("clip-norm")) return false;
  if (arguments.HasValue("clip-norm") && arguments.Decimal("clip-norm") <= 0) {
    throw Error(fmt::format("{}: '{}' is not a positive norm", arguments.PlaceOf("clip-norm"),
                            arguments.Text("clip-norm")));
  }
  return true;
}

bool WantsBarrier(const Arguments& arguments) {
  constexpr std::string_view kBarriers[] = {"none", "global"};
  return arguments.Has("flush-barrier") && arguments.Choice("flush-barrier", kBarriers) == "global";
}

/// On a cluster it is --gradient-bytes that says whether they reduce anything.
bool ReplicasReduce(const Arguments& arguments) {
  return arguments.CountOr("replicas", 1) > 1 && !arguments.Has("cluster");
}

NamedSchedule ReadScheduleFile(const std::string& file, const Arguments& arguments) {
  NamedSchedule named{.schedule = ReadCsv(file), .file = file};
  const auto check = [&](const std::string& flag, int actual, const char* what) {
    if (!arguments.Has(flag) || arguments.Count(flag) == actual) return;
    throw Error(fmt::format("{}: '{}' contradicts {}, which has {} {}", arguments.PlaceOf(flag),
                            arguments.Text(flag), file, actual, what));
  };
  if (arguments.Has("sends")) {
    if (named.schedule.given_order.empty()) {
      throw Error(fmt::format("{}: {} has no sends", arguments.PlaceOf("sends"), file));
    }
    named.schedule.sends = SendsOf(arguments);
  }
  check("ranks", named.schedule.ranks, "ranks");
  check("microbatches", named.schedule.microbatches, "micro-batches per step");
  const auto& groups = named.schedule.groups;
  for (const Awaited& awaited : kAwaited) {
    if (!arguments.Has(awaited.flag) || !awaited.wanted(arguments, named.schedule)) continue;
    if (std::any_of(groups.begin(), groups.end(), awaited.is_it)) continue;
    throw Error(fmt::format("{}: {} has no {}, and its order is fixed",
                            arguments.PlaceOf(awaited.flag), file, awaited.what));
  }
  if (arguments.Has("flush-barrier") && !WantsBarrier(arguments) &&
      std::any_of(groups.begin(), groups.end(), IsOf<Purpose::kBarrier>)) {
    throw Error(fmt::format("{}: 'none' contradicts {}, which has a flush barrier",
                            arguments.PlaceOf("flush-barrier"), file));
  }
  return named;
}

}  // namespace pipelag
