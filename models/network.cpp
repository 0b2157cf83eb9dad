#include "models/network.h"

#include <fmt/format.h>

#include "models/error.h"

namespace pipelag {

int64_t DefaultInnerSize(MlpChoice mlp, int64_t hidden) {
  if (mlp == MlpChoice::kGelu) return 4 * hidden;
  constexpr int64_t kMultiple = 8;
  const int64_t exact = (8 * hidden + 2) / 3;
  return (exact + kMultiple - 1) / kMultiple * kMultiple;
}

int64_t NetworkShape::inner_size() const { return ffn > 0 ? ffn : DefaultInnerSize(mlp, hidden); }

std::string UnlikeGpt2(const NetworkShape& shape) {
  std::vector<std::string> traits;
  if (shape.norm == NormChoice::kRms) traits.emplace_back("RMSNorm");
  if (shape.positions == PositionChoice::kRotary) traits.emplace_back("rotary positions");
  if (shape.mlp == MlpChoice::kSwiGlu) traits.emplace_back("SwiGLU");
  if (shape.kv_heads() != shape.heads) traits.emplace_back("shared key-value heads");
  if (shape.inner_size() != 4 * int64_t{shape.hidden} && shape.mlp == MlpChoice::kGelu) {
    traits.push_back(fmt::format("an inner size of {}", shape.inner_size()));
  }
  if (!shape.bias) traits.emplace_back("no biases");
  return fmt::format("{}", fmt::join(traits, ", "));
}

bool IsGpt2(const NetworkShape& shape) { return UnlikeGpt2(shape).empty(); }

bool IsLlama(const NetworkShape& shape) {
  return shape.norm == NormChoice::kRms && shape.positions == PositionChoice::kRotary &&
         shape.mlp == MlpChoice::kSwiGlu && !shape.bias;
}

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
  if (shape.ffn < 0) throw Error(fmt::format("--ffn must be at least 1, not {}", shape.ffn));
  if (shape.key_value_heads < 0 || shape.heads % shape.kv_heads() != 0) {
    throw Error(fmt::format("--key-value-heads {} does not divide --heads {}",
                            shape.key_value_heads, shape.heads));
  }
  if (shape.positions == PositionChoice::kRotary && shape.head_size() % 2 != 0) {
    throw Error(fmt::format(
        "--positions rotary turns pairs of channels, but a head of --hidden {} over --heads {} has "
        "{}",
        shape.hidden, shape.heads, shape.head_size()));
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
