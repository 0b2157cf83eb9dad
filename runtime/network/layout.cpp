#include "runtime/network/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/error.h"
#include "models/random.h"

namespace pipelag {
namespace {

// Keeps the weights' random numbers apart from those drawn for other purposes with the same seed.
constexpr uint64_t kWeightStream = 1;

}  // namespace

StageLayout::StageLayout(const NetworkShape& shape, LayerRange range) {
  CheckShape(shape);
  CHECK(range.first >= 0 && range.first < range.last && range.last <= shape.layers);
  const int c = shape.hidden;
  if (range.first == 0) {
    Add("wte.weight", shape.vocabulary, c, TensorRole::kEmbedding, 0);
    Add("wpe.weight", shape.sequence, c, TensorRole::kEmbedding, 1);
  }
  for (int layer = range.first; layer < range.last; ++layer) {
    int index = 2 + kTensorsPerLayer * layer;
    const auto matrix = [&](const char* name, int rows, int cols) {
      Add(fmt::format("h.{}.{}.weight", layer, name), rows, cols, TensorRole::kMatrix, index++);
      Add(fmt::format("h.{}.{}.bias", layer, name), rows, 1, TensorRole::kVector, index++);
    };
    const auto norm = [&](const char* name) {
      Add(fmt::format("h.{}.{}.weight", layer, name), c, 1, TensorRole::kVector, index++);
      Add(fmt::format("h.{}.{}.bias", layer, name), c, 1, TensorRole::kVector, index++);
    };
    norm("ln_1");
    matrix("attn.c_attn", 3 * c, c);
    matrix("attn.c_proj", c, c);
    norm("ln_2");
    matrix("mlp.c_fc", 4 * c, c);
    matrix("mlp.c_proj", c, 4 * c);
  }
  if (range.last == shape.layers) {
    const int index = TensorCount(shape) - 3;
    Add("ln_f.weight", c, 1, TensorRole::kVector, index);
    Add("ln_f.bias", c, 1, TensorRole::kVector, index + 1);
    Add("lm_head.weight", shape.vocabulary, c, TensorRole::kHead, index + 2);
  }
}

void StageLayout::Add(std::string name, int rows, int cols, TensorRole role, int global_index) {
  tensors_.push_back({std::move(name), rows, cols, role, global_index, size_});
  const int64_t elements = tensors_.back().elements();
  size_ += (elements + kAlignment - 1) / kAlignment * kAlignment;
}

const StageTensor& StageLayout::Find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const StageTensor& tensor) { return tensor.name == name; });
  if (found == tensors_.end()) throw Error(fmt::format("this stage holds no tensor {}", name));
  return *found;
}

int TensorCount(const NetworkShape& shape) {
  return 5 + StageLayout::kTensorsPerLayer * shape.layers;
}

void InitialiseWeights(const StageLayout& layout, const NetworkShape& shape, uint64_t seed,
                       float* weights) {
  std::fill(weights, weights + layout.size(), 0.0f);
  for (const StageTensor& tensor : layout.tensors()) {
    float* values = weights + tensor.offset;
    if (tensor.role == TensorRole::kVector) {
      if (tensor.name.find("ln_") != std::string::npos && tensor.name.ends_with(".weight")) {
        std::fill(values, values + tensor.elements(), 1.0f);
      }
      continue;
    }
    const bool residual = tensor.name.ends_with("c_proj.weight");
    const double deviation = residual ? 0.02 / std::sqrt(2.0 * shape.layers) : 0.02;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const uint64_t bits = RandomBits(seed, static_cast<uint64_t>(tensor.global_index),
                                       static_cast<uint64_t>(i), kWeightStream);
      values[i] = static_cast<float>(deviation * StandardNormal(bits));
    }
  }
}

}  // namespace pipelag
