// The flags that say how large things are in a device's memory.
#include "tools/memory_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace pipelag {
namespace {

/// One entry stands for all stages. The flag is given.
std::vector<Bytes> SizesOf(const Arguments& arguments, const std::string& flag, int stages) {
  const auto count = static_cast<size_t>(stages);
  const std::vector<Bytes> sizes = arguments.Sizes(flag);
  if (sizes.size() == 1) return std::vector<Bytes>(count, sizes[0]);
  if (sizes.size() != count) {
    throw Error(fmt::format("{} has {} entries: give one for all stages, or one for each of the {}",
                            arguments.PlaceOf(flag), sizes.size(), stages));
  }
  return sizes;
}

struct NamedSize {
  const char* flag;
  Bytes StageMemory::*size;
};
constexpr NamedSize kSizes[] = {{"weight-bytes", &StageMemory::weights},
                                {"accumulator-bytes", &StageMemory::gradients},
                                {"optimizer-bytes", &StageMemory::optimizer},
                                {"activation-memory", &StageMemory::activation},
                                {"freed-at-input", &StageMemory::freed_at_input}};

/// Whether one of the flags says how large anything is, besides the device.
bool GivesSizes(const Arguments& arguments) {
  return std::any_of(std::begin(kSizes), std::end(kSizes),
                     [&](const NamedSize& named) { return arguments.Has(named.flag); });
}

/// What is given takes the place of what stood there.
void Override(const Arguments& arguments, int stages, MemorySizes& sizes) {
  for (const NamedSize& named : kSizes) {
    if (!arguments.Has(named.flag)) continue;
    const std::vector<Bytes> given = SizesOf(arguments, named.flag, stages);
    for (size_t s = 0; s < given.size(); ++s) sizes.stages[s].*named.size = given[s];
  }
  for (StageMemory& stage : sizes.stages) {
    if (arguments.Has("activation-bytes")) stage.message = arguments.Size("activation-bytes");
    if (arguments.Has("freed-at-input")) continue;
    stage.freed_at_input = std::min(stage.freed_at_input, stage.activation);
  }
  if (!arguments.Has("device-memory")) return;
  sizes.device = arguments.Size("device-memory");
  if (sizes.device > 0) return;
  throw Error(
      fmt::format("{}: a device without memory holds nothing", arguments.PlaceOf("device-memory")));
}

}  // namespace

std::vector<Flag> MemoryFlags() {
  return {
      {"weight-bytes", "SIZE[,SIZE...]", "of one version of a stage's weights"},
      {"accumulator-bytes", "SIZE[,SIZE...]",
       "of one gradient accumulator (default: the model's, else as --weight-bytes)"},
      {"optimizer-bytes", "SIZE[,SIZE...]", "of a stage's optimizer and correction state"},
      {"activation-memory", "SIZE[,SIZE...]", "that a stage keeps of one micro-batch"},
      {"freed-at-input", "SIZE[,SIZE...]",
       "of it, freed by the backward for the input already (default: 0)"},
      {"device-memory", "SIZE", "of a rank (default: the machine's); needing more is exit code 1"},
  };
}

std::optional<MemorySizes> MemorySizesOf(const Arguments& arguments, int stages,
                                         const MemorySizes* modelled) {
  if (modelled != nullptr) {
    MemorySizes sizes = *modelled;
    Override(arguments, stages, sizes);
    return sizes;
  }
  if (!GivesSizes(arguments)) {
    if (!arguments.Has("device-memory")) return std::nullopt;
    throw Error(fmt::format("{}: what is to fit is not said; give sizes such as --weight-bytes",
                            arguments.PlaceOf("device-memory")));
  }
  MemorySizes sizes;
  sizes.stages.resize(static_cast<size_t>(stages));
  Override(arguments, stages, sizes);
  if (!arguments.Has("accumulator-bytes")) {
    for (StageMemory& stage : sizes.stages) stage.gradients = stage.weights;
  }
  return sizes;
}

}  // namespace pipelag
