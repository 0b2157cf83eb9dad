#include "models/update_time.h"

#include <cmath>
#include <limits>

#include "models/error.h"

namespace pipelag {
namespace {

constexpr Bytes kBytesPerFloat = 4;

}  // namespace

std::vector<ParameterShape> StageParameters(const NetworkShape& shape, LayerRange range) {
  CheckShape(shape);
  CHECK(range.first >= 0 && range.first < range.last && range.last <= shape.layers);
  const int64_t c = shape.hidden;
  std::vector<ParameterShape> tensors;
  const auto embedding = [&](int64_t rows) {
    tensors.push_back({rows, c, ParameterKind::kEmbedding});
  };
  const auto vector = [&](int64_t size) { tensors.push_back({size, 1, ParameterKind::kVector}); };
  const auto linear = [&](int64_t rows, int64_t cols) {
    tensors.push_back({rows, cols, ParameterKind::kMatrix});
    if (shape.bias) vector(rows);
  };
  const auto norm = [&] {
    vector(c);
    if (shape.norm_shifts()) vector(c);
  };
  if (range.first == 0) {
    embedding(shape.vocabulary);
    if (shape.positions == PositionChoice::kLearned) embedding(shape.sequence);
  }
  for (int layer = range.first; layer < range.last; ++layer) {
    norm();
    if (shape.packed_attention()) {
      linear(3 * c, c);
    } else {
      linear(c, c);
      linear(shape.kv_size(), c);
      linear(shape.kv_size(), c);
    }
    linear(c, c);
    norm();
    if (shape.mlp == MlpChoice::kSwiGlu) linear(shape.inner_size(), c);
    linear(shape.inner_size(), c);
    linear(c, shape.inner_size());
  }
  if (range.last == shape.layers) {
    norm();
    // Of a tied embedding each holder updates its own copy.
    if (!shape.tied || range.first > 0) embedding(shape.vocabulary);
  }
  return tensors;
}

int64_t NetworkParameters(const NetworkShape& shape) {
  int64_t count = 0;
  for (const ParameterShape& tensor : StageParameters(shape, {0, shape.layers})) {
    count += tensor.elements();
  }
  return count;
}

Nanoseconds UpdateTime(const UpdateCost& cost, const DeviceRates& rates) {
  CHECK(rates.compute.flops_per_second > 0);
  const Nanoseconds passes = TransferTime(cost.floats_moved * kBytesPerFloat, rates.memory);
  const long double products = std::ceil(static_cast<long double>(cost.matrix_flops) * 1e9L /
                                         static_cast<long double>(rates.compute.flops_per_second));
  if (products > static_cast<long double>(std::numeric_limits<int64_t>::max() / 2)) {
    throw Error("an optimizer update would take longer than 146 years");
  }
  return passes + Nanoseconds{static_cast<int64_t>(products)};
}

}  // namespace pipelag
