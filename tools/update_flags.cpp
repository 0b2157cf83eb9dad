#include "tools/update_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/update_time.h"
#include "tools/flags.h"
#include "tools/network_flags.h"
#include "tools/training_flags.h"

namespace pipelag {
namespace {

int CountUpTo(int64_t most, const Arguments& arguments, const char* flag, int otherwise) {
  const int64_t count = arguments.CountOr(flag, otherwise);
  if (count > most) {
    throw Error(fmt::format("{}: {} is more than {}", arguments.PlaceOf(flag), count, most));
  }
  return static_cast<int>(count);
}

ComputeRate ComputeOf(const Arguments& arguments) {
  try {
    return ParseComputeRate(arguments.Text("device-compute"));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf("device-compute"), error.what()));
  }
}

NetworkShape ShapeOf(const Arguments& arguments) {
  // No sum of products of these leaves 64 bits.
  constexpr int64_t kMostChannels = 100'000;
  constexpr int64_t kMostTokens = 10'000'000;
  const NetworkShape otherwise;
  NetworkShape shape;
  shape.layers = CountUpTo(kMostChannels, arguments, "layers", otherwise.layers);
  shape.hidden = CountUpTo(kMostChannels, arguments, "hidden", otherwise.hidden);
  shape.heads = CountUpTo(kMostChannels, arguments, "heads", otherwise.heads);
  shape.sequence = CountUpTo(kMostTokens, arguments, "sequence", otherwise.sequence);
  shape.vocabulary = CountUpTo(kMostTokens, arguments, "vocabulary", otherwise.vocabulary);
  TakeNetworkKind(arguments, shape);
  CheckShape(shape);
  return shape;
}

/// The greatest over the placed stages that hold the slice.
int DelayOf(const Program& program, int slice) {
  const Schedule& schedule = program.schedule();
  int delay = 0;
  for (int stream = 0; stream < schedule.streams; ++stream) {
    const int placed = schedule.PlacedStage(stream, slice);
    delay = std::max(delay, program.versions(placed).gradient_delay);
  }
  return delay;
}

}  // namespace

std::vector<Flag> UpdateFlags() {
  std::vector<Flag> flags = {
      {"optimizer", "NAME",
       "gives updates their time, of a network of --layers … on a device of --device-… (with "
       "--machine of its model and its device; default there: adamw)"},
      {"correction", "NAME", "of late gradients: what it adds to an update (default: none)"},
      {"layers", "COUNT", "transformer layers (default: 4; with --machine the model's)"},
      {"hidden", "COUNT", "channels (default: 128; with --machine the model's)"},
      {"heads", "COUNT", "attention heads (default: 4; with --machine the model's)"},
      {"sequence", "COUNT",
       "tokens per sequence (default: 64; with --machine as many as the model is made for, at most "
       "4096)"},
      {"vocabulary", "COUNT",
       "tokens there are (default: 256; with --machine the model's, or 51200)"},
      {"split", "even|auto|COUNT[,...]",
       "layers of each stage, of which only the first and the last may have 0, where an embedding "
       "or a head is there alone; auto: so that the slowest rank is fastest, within "
       "--device-memory, where the times of layers are known (default: even)"},
      {"device-compute", "RATE", "matrix products of a device (400TFLOP/s), for --optimizer"},
      {"device-bandwidth", "RATE", "its memory's bandwidth (3.3TB/s), for --optimizer"},
  };
  return Concatenate({std::move(flags), NetworkKindFlags()});
}

std::optional<std::vector<Nanoseconds>> UpdateTimesOf(const Arguments& arguments,
                                                      const Program& program) {
  const bool device = arguments.Has("device-compute") || arguments.Has("device-bandwidth");
  // A job file may name the optimizer for training alone.
  const bool asked = arguments.Has("optimizer") && arguments.PlaceOf("optimizer") == "--optimizer";
  if (arguments.Has("update") || (!device && !asked)) return std::nullopt;
  if (!arguments.Has("optimizer")) {
    const char* given = arguments.Has("device-compute") ? "device-compute" : "device-bandwidth";
    throw Error(fmt::format("{}: needs --optimizer", arguments.PlaceOf(given)));
  }
  for (const char* needed : {"device-compute", "device-bandwidth"}) {
    if (arguments.Has(needed)) continue;
    throw Error(fmt::format("{}: needs --{}, or --update for the time itself",
                            arguments.PlaceOf("optimizer"), needed));
  }
  const DeviceRates rates{ComputeOf(arguments), arguments.Rate("device-bandwidth")};
  const NetworkShape shape = ShapeOf(arguments);
  const std::vector<LayerRange> split = SplitOf(arguments, shape.layers, program.schedule().stages);
  const std::string optimizer = arguments.Text("optimizer");
  const std::string correction = arguments.TextOr("correction", "none");
  std::vector<Nanoseconds> times;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    UpdateCost cost;
    for (const ParameterShape& tensor : StageParameters(shape, split[stage])) {
      cost += OptimizerCost(optimizer, tensor);
      cost += CorrectionCost(correction, tensor, DelayOf(program, static_cast<int>(stage)));
    }
    times.push_back(UpdateTime(cost, rates));
  }
  return times;
}

}  // namespace pipelag
