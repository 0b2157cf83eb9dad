// Cases of attention.h's kernels.
#pragma once

#include <cmath>

#include "runtime/cuda/kernels/attention.h"
#include "runtime/network/attention.h"
#include "tests/runtime/cuda/kernel_case.h"
#include "tests/runtime/cuda/tolerance.h"

namespace pipelag::cuda {

/// The same attention as the CPU has it, with its T×T matrices.
struct CpuAttention {
  CpuAttention(const AttentionShape& shape, const std::vector<float>& qkv)
      : network(ShapeOf(shape)),
        probabilities(Size(shape.batch * shape.heads * shape.sequence * shape.sequence)),
        attended(Size(shape.rows() * shape.cols())),
        log_sums(Size(shape.row_elements())) {
    pipelag::Products<float> products(ProductPrecision::kFp32);
    Attention<float>(network, shape.batch, products)
        .Probabilities(qkv.data(), probabilities.data());
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        for (int64_t t = 0; t < shape.sequence; ++t) Attend(shape, qkv, b, h, t);
      }
    }
  }

  static NetworkShape ShapeOf(const AttentionShape& shape) {
    NetworkShape network;
    network.hidden = static_cast<int>(shape.cols());
    network.heads = static_cast<int>(shape.heads);
    network.key_value_heads = static_cast<int>(shape.kv_heads);
    network.sequence = static_cast<int>(shape.sequence);
    return network;
  }

  std::vector<float> Gradient(const AttentionShape& shape, const std::vector<float>& qkv,
                              const std::vector<float>& attended_gradient) const {
    std::vector<float> gradient(qkv.size());
    // Through weights of zero, for what lies behind them is not asked for.
    const std::vector<float> weights(Size(shape.stride() * shape.cols()));
    std::vector<float> x_gradient(Size(shape.rows() * shape.cols()));
    AttentionTensors at;
    at.query = 0;
    pipelag::Products<float> products(ProductPrecision::kFp32);
    Attention<float>(network, shape.batch, products)
        .BackwardInput(weights.data(), at, qkv.data(), probabilities.data(),
                       attended_gradient.data(), gradient.data(), x_gradient.data());
    return gradient;
  }

  NetworkShape network;
  std::vector<float> probabilities, attended;
  std::vector<double> log_sums;

 private:
  void Attend(const AttentionShape& shape, const std::vector<float>& qkv, int64_t b, int64_t h,
              int64_t t) {
    const int64_t row = (b * shape.heads + h) * shape.sequence + t;
    const float* probability = probabilities.data() + row * shape.sequence;
    const int64_t shared = (shape.heads + h * shape.kv_heads / shape.heads) * shape.head_size;
    const float* keys = qkv.data() + b * shape.sequence * shape.stride() + shared;
    const float* values = keys + shape.kv_heads * shape.head_size;
    const float* query =
        qkv.data() + (b * shape.sequence + t) * shape.stride() + h * shape.head_size;
    for (int64_t i = 0; i < shape.head_size; ++i) {
      double sum = 0;
      for (int64_t s = 0; s <= t; ++s) {
        sum += static_cast<double>(probability[s]) *
               static_cast<double>(values[s * shape.stride() + i]);
      }
      attended[Size((b * shape.sequence + t) * shape.cols() + h * shape.head_size + i)] =
          static_cast<float>(sum);
    }
    double sum = 0;
    for (int64_t s = 0; s <= t; ++s) {
      double score = 0;
      for (int64_t i = 0; i < shape.head_size; ++i) {
        score += static_cast<double>(query[i]) * static_cast<double>(keys[s * shape.stride() + i]);
      }
      sum += std::exp(score / std::sqrt(static_cast<double>(shape.head_size)));
    }
    log_sums[Size(row)] = std::log(sum);
  }
};

/// Floating-point operations of `products` products over the visible half of the scores.
inline double CausalOperations(const AttentionShape& shape, int products) {
  const auto t = static_cast<double>(shape.sequence);
  return products * static_cast<double>(shape.batch * shape.cols()) * t * (t + 1);
}

template <class T>
KernelCase AttentionForwardCase(KernelMemory& memory, bool compared, const AttentionShape& shape) {
  KernelCase c(memory, compared);
  const std::vector<float> in = Rounded<T>(Normal(shape.rows() * shape.stride(), 1));
  std::vector<double> expected;
  std::vector<double> log_sums;
  if (compared) {
    const CpuAttention cpu(shape, in);
    expected = Doubles(cpu.attended);
    log_sums = cpu.log_sums;
  }
  const T* qkv = c.Input<T>(in);
  T* attended =
      c.Result<T>("attended", shape.rows() * shape.cols(), expected, kProductTolerance<T>);
  float* sums = c.Result<float>("log sums", shape.row_elements(), log_sums, kExact);
  c.moved_bytes = static_cast<double>(shape.rows() * (shape.stride() + shape.cols())) * sizeof(T);
  c.operations = CausalOperations(shape, 2);
  c.launch = [=] { AttentionForward(nullptr, shape, qkv, attended, sums); };
  return c;
}

/// Behind a forward of its own, as far as `compared` goes: the forward's results are inputs here.
template <class T>
KernelCase AttentionBackwardCase(KernelMemory& memory, bool compared, const AttentionShape& shape) {
  KernelCase c(memory, compared);
  const std::vector<float> in = Rounded<T>(Normal(shape.rows() * shape.stride(), 1));
  const std::vector<float> out_gradient = Rounded<T>(Normal(shape.rows() * shape.cols(), 2));
  std::vector<float> out = Rounded<T>(Normal(shape.rows() * shape.cols(), 3));
  std::vector<float> log_sums(Size(shape.row_elements()), 10);
  std::vector<double> expected;
  if (compared) {
    const CpuAttention cpu(shape, in);
    out = cpu.attended;
    for (size_t i = 0; i < log_sums.size(); ++i) {
      log_sums[i] = static_cast<float>(cpu.log_sums[i]);
    }
    expected = Doubles(cpu.Gradient(shape, in, out_gradient));
  }
  const T* qkv = c.Input<T>(in);
  const T* attended = c.Input<T>(out);
  const float* sums = c.Input<float>(log_sums);
  const T* gradient = c.Input<T>(out_gradient);
  auto* dots = static_cast<float*>(c.Scratch(Size(shape.row_elements()) * sizeof(float)));
  T* qkv_gradient =
      c.Result<T>("qkv gradient", shape.rows() * shape.stride(), expected, kProductTolerance<T>);
  c.moved_bytes =
      static_cast<double>(2 * shape.rows() * (shape.stride() + shape.cols())) * sizeof(T);
  c.operations = CausalOperations(shape, 5);
  c.launch = [=] {
    AttentionBackward(nullptr, shape, qkv, attended, sums, gradient, dots, qkv_gradient);
  };
  return c;
}

}  // namespace pipelag::cuda
