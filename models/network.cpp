#include "models/network.h"

#include <fmt/format.h>

#include "models/error.h"

namespace pipelag {

void CheckShape(const NetworkShape& shape) {
  const auto positive = [](const char* name, int value) {
    if (value < 1) throw Error(fmt::format("{} must be at least 1, not {}", name, value));
  };
  positive("--layers", shape.layers);
  positive("--hidden", shape.hidden);
  positive("--heads", shape.heads);
  positive("--sequence", shape.sequence);
  positive("vocabulary", shape.vocabulary);
  if (shape.hidden % shape.heads != 0) {
    throw Error(fmt::format("--heads {} does not divide --hidden {}", shape.heads, shape.hidden));
  }
}

std::vector<LayerRange> SplitLayers(int layers, int stages) {
  if (layers < 1) throw Error(fmt::format("a network needs at least 1 layer, not {}", layers));
  if (stages < 1) throw Error(fmt::format("a network needs at least 1 stage, not {}", stages));
  if (stages > layers) {
    throw Error(fmt::format("{} stages cannot share {} layers: every stage needs at least one",
                            stages, layers));
  }
  std::vector<int> counts(static_cast<size_t>(stages), layers / stages);
  for (int s = 0; s < layers % stages; ++s) ++counts[static_cast<size_t>(s)];
  return SplitLayers(layers, counts);
}

std::vector<LayerRange> SplitLayers(int layers, const std::vector<int>& counts) {
  int64_t sum = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] < 1) {
      throw Error(fmt::format("stage {} of the split has {} layers: every stage needs at least one",
                              s, counts[s]));
    }
    sum += counts[s];
  }
  if (sum != layers) {
    throw Error(fmt::format("the split gives out {} layers, but the network has {}", sum, layers));
  }
  std::vector<LayerRange> ranges;
  int first = 0;
  for (const int count : counts) {
    ranges.push_back({first, first + count});
    first += count;
  }
  return ranges;
}

}  // namespace pipelag
