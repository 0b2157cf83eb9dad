// The flags that say how large things are in a device's memory.
#include "tools/memory_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace pipelag {
namespace {

/// One entry stands for all stages.
std::vector<Bytes> SizesOf(const Arguments& arguments, const std::string& flag, int stages) {
  const auto count = static_cast<size_t>(stages);
  if (!arguments.Has(flag)) return std::vector<Bytes>(count, 0);
  const std::vector<Bytes> sizes = arguments.Sizes(flag);
  if (sizes.size() == 1) return std::vector<Bytes>(count, sizes[0]);
  if (sizes.size() != count) {
    throw Error(fmt::format("{} has {} entries: give one for all stages, or one for each of the {}",
                            arguments.PlaceOf(flag), sizes.size(), stages));
  }
  return sizes;
}

}  // namespace

std::vector<Flag> MemoryFlags() {
  return {
      {"weight-bytes", "SIZE[,SIZE...]", "of one version of a stage's weights"},
      {"accumulator-bytes", "SIZE[,SIZE...]",
       "of one gradient accumulator (default: as the weights)"},
      {"optimizer-bytes", "SIZE[,SIZE...]", "of a stage's optimizer and correction state"},
      {"activation-memory", "SIZE[,SIZE...]", "that a stage keeps of one micro-batch"},
      {"freed-at-input", "SIZE[,SIZE...]",
       "of it, freed by the backward for the input already (default: 0)"},
      {"device-memory", "SIZE", "of a rank; needing more is exit code 1"},
  };
}

bool GivesSizes(const Arguments& arguments) {
  const std::vector<Flag> flags = MemoryFlags();
  return std::any_of(flags.begin(), flags.end(), [&](const Flag& flag) {
    return flag.name != "device-memory" && arguments.Has(flag.name);
  });
}

std::optional<MemorySizes> MemorySizesOf(const Arguments& arguments, int stages) {
  if (!GivesSizes(arguments)) {
    if (!arguments.Has("device-memory")) return std::nullopt;
    throw Error(fmt::format("{}: what is to fit is not said; give sizes such as --weight-bytes",
                            arguments.PlaceOf("device-memory")));
  }
  const auto of = [&](const std::string& flag) { return SizesOf(arguments, flag, stages); };
  const std::vector<Bytes> weights = of("weight-bytes");
  const std::vector<Bytes> gradients =
      arguments.Has("accumulator-bytes") ? of("accumulator-bytes") : weights;
  const std::vector<Bytes> optimizer = of("optimizer-bytes");
  const std::vector<Bytes> activation = of("activation-memory");
  const std::vector<Bytes> freed = of("freed-at-input");
  const Bytes message =
      arguments.Has("activation-bytes") ? arguments.Size("activation-bytes") : Bytes{0};
  MemorySizes sizes;
  for (size_t s = 0; s < weights.size(); ++s) {
    sizes.stages.push_back(
        {weights[s], gradients[s], optimizer[s], activation[s], freed[s], message});
  }
  if (arguments.Has("device-memory")) sizes.device = arguments.Size("device-memory");
  return sizes;
}

}  // namespace pipelag
