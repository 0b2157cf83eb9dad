#include "tools/replica_flags.h"

#include <fmt/format.h>

#include "models/schedule/replicate.h"

namespace pipelag {

int ReplicasOf(const Arguments& arguments) {
  constexpr int64_t kMost = 65535;
  const int64_t replicas = arguments.CountOr("replicas", 1);
  if (replicas > kMost) {
    throw Error(
        fmt::format("{}: {} is more than {}", arguments.PlaceOf("replicas"), replicas, kMost));
  }
  return static_cast<int>(replicas);
}

Program LowerWithReplicas(const NamedSchedule& named, const Arguments& arguments) {
  Program program = Lower(named, arguments);
  const int replicas = ReplicasOf(arguments);
  if (replicas == 1) return program;
  try {
    return InFileOf(
        named, [&] { return Program(Replicate(program.schedule(), replicas), program.steps()); });
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf("replicas"), error.what()));
  }
}

Flag ReplicasFlag() {
  return {"replicas", "COUNT",
          "data-parallel copies of the pipeline, each with ranks and --microbatches of its own "
          "(default: 1)"};
}

}  // namespace pipelag
