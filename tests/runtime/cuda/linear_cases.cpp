#include "tests/runtime/cuda/linear_cases.h"

#include <cmath>
#include <string>

#include "models/error.h"
#include "runtime/cuda/stage/linear.h"
#include "tests/runtime/cuda/tolerance.h"

namespace pipelag::cuda {
namespace {

using Values = std::vector<float>;

struct Matrix {
  const Values& values;
  int64_t ld;
  bool flipped = false;

  double At(int64_t i, int64_t j) const {
    return static_cast<double>(values[Size(flipped ? j * ld + i : i * ld + j)]);
  }
};

/// op(a) · op(b) in double.
std::vector<double> Multiplied(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b) {
  std::vector<double> d(Size(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) d[Size(i * n + j)] += a.At(i, l) * b.At(l, j);
    }
  }
  return d;
}

double GeluOf(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

double GeluSlope(double x) {
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/// Weights and their bias, and the tools, of one layer.
template <class T>
struct Layer {
  Layer(KernelMemory& memory, Products& products_in, LinearSize size_in, bool has_bias)
      : c(memory, true),
        size(size_in),
        tools{products_in, nullptr,
              static_cast<float*>(c.Scratch(Size(LinearScratch(size.rows, size.outputs)) * 4))},
        x(Rounded<T>(Normal(size.rows * size.inputs, 1))),
        w(Rounded<T>(Normal(size.inputs * size.outputs, 2, 0.2))),
        bias(has_bias ? Rounded<T>(Normal(size.outputs, 3)) : Values()) {
    weights.weight = c.Input<T>(w);
    if (!has_bias) return;
    weights.bias = c.Input<float>(bias);
    weights.bias_copy = c.Input<T>(bias);
  }

  /// x · wᵀ + bias, (rows, outputs).
  std::vector<double> Forward() const {
    auto y =
        Multiplied(size.rows, size.outputs, size.inputs, {x, size.inputs}, {w, size.inputs, true});
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias.empty() ? 0 : bias[i % Size(size.outputs)];
    return y;
  }
  /// A gradient of y, whose rows are `stride` apart, with numbers between them that do not count.
  Values OfY() const { return Rounded<T>(Normal(size.rows * size.stride, 4)); }

  KernelCase c;
  LinearSize size;
  LinearTools tools;
  Values x;
  Values w;
  Values bias;
  LinearWeights<T> weights;
};

template <class T>
KernelCase ForwardCase(KernelMemory& memory, Products& products, LinearSize size, bool bias) {
  Layer<T> layer(memory, products, size, bias);
  const auto y = layer.Forward();
  const Values before = Rounded<T>(Normal(size.rows * size.stride, 5));
  std::vector<double> expected = Doubles(before);
  for (int64_t i = 0; i < size.rows; ++i) {
    for (int64_t j = 0; j < size.outputs; ++j) {
      expected[Size(i * size.stride + j)] = y[Size(i * size.outputs + j)];
    }
  }
  const T* x = layer.c.template Input<T>(layer.x);
  T* to = layer.c.template Changed<T>("y", before, expected, kProductTolerance<T>);
  layer.c.launch = [=, tools = layer.tools, weights = layer.weights] {
    LinearForward(tools, size, x, weights, to);
  };
  return layer.c;
}

template <class T>
KernelCase AddCase(KernelMemory& memory, Products& products, LinearSize size, bool bias) {
  size.stride = size.outputs;
  Layer<T> layer(memory, products, size, bias);
  const Values residual = Rounded<T>(Normal(size.rows * size.outputs, 6));
  auto expected = layer.Forward();
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(residual[i]);
  const T* x = layer.c.template Input<T>(layer.x);
  const T* added = layer.c.template Input<T>(residual);
  T* to = layer.c.template Result<T>("y", size.rows * size.outputs, expected, kProductTolerance<T>);
  layer.c.launch = [=, tools = layer.tools, weights = layer.weights] {
    LinearForwardAdd(tools, size, x, weights, added, to);
  };
  return layer.c;
}

template <class T>
KernelCase GeluCase(KernelMemory& memory, Products& products, LinearSize size, bool bias,
                    bool fuse) {
  size.stride = size.outputs;
  Layer<T> layer(memory, products, size, bias);
  const auto expected = layer.Forward();
  std::vector<double> activated;
  for (const double value : expected) activated.push_back(GeluOf(value));
  const T* x = layer.c.template Input<T>(layer.x);
  const int64_t count = size.rows * size.outputs;
  T* hidden = layer.c.template Result<T>("hidden", count, expected, kProductTolerance<T>);
  T* to = layer.c.template Result<T>("y", count, activated, kProductTolerance<T>);
  layer.c.launch = [=, tools = layer.tools, weights = layer.weights] {
    LinearForwardGelu(tools, size, fuse, x, weights, hidden, to);
  };
  return layer.c;
}

template <class T>
KernelCase InputCase(KernelMemory& memory, Products& products, LinearSize size, float alpha,
                     float beta) {
  Layer<T> layer(memory, products, size, false);
  const Values of_y = layer.OfY();
  const Values before = Rounded<T>(Normal(size.rows * size.inputs, 7));
  auto expected =
      Multiplied(size.rows, size.inputs, size.outputs, {of_y, size.stride}, {layer.w, size.inputs});
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<double>(alpha) * expected[i] +
                  static_cast<double>(beta) * static_cast<double>(before[i]);
  }
  const T* from = layer.c.template Input<T>(of_y);
  T* to = layer.c.template Changed<T>("x gradient", before, expected, kProductTolerance<T>);
  layer.c.launch = [=, tools = layer.tools, weights = layer.weights] {
    LinearBackwardInput(tools, size, alpha, from, weights.weight, beta, to);
  };
  return layer.c;
}

template <class T>
KernelCase GeluGradientCase(KernelMemory& memory, Products& products, LinearSize size) {
  Layer<T> layer(memory, products, size, false);
  const Values of_y = layer.OfY();
  const Values hidden = Rounded<T>(Normal(size.rows * size.inputs, 8));
  auto expected =
      Multiplied(size.rows, size.inputs, size.outputs, {of_y, size.stride}, {layer.w, size.inputs});
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] *= GeluSlope(static_cast<double>(hidden[i]));
  }
  const T* from = layer.c.template Input<T>(of_y);
  const T* argument = layer.c.template Input<T>(hidden);
  T* to = layer.c.template Result<T>("hidden gradient", size.rows * size.inputs, expected,
                                     kProductTolerance<T>);
  layer.c.launch = [=, tools = layer.tools, weights = layer.weights] {
    LinearBackwardGelu(tools, size, from, weights.weight, argument, to);
  };
  return layer.c;
}

template <class T>
KernelCase WeightCase(KernelMemory& memory, Products& products, LinearSize size, bool bias,
                      float alpha) {
  Layer<T> layer(memory, products, size, false);
  const Values of_y = layer.OfY();
  const Values before = Normal(size.inputs * size.outputs, 9);
  const Values bias_before = Normal(size.outputs, 10);
  auto expected = Multiplied(size.outputs, size.inputs, size.rows, {of_y, size.stride, true},
                             {layer.x, size.inputs});
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<double>(alpha) * expected[i] + static_cast<double>(before[i]);
  }
  std::vector<double> sums = Doubles(bias_before);
  for (int64_t i = 0; bias && i < size.rows * size.stride; ++i) {
    const int64_t j = i % size.stride;
    if (j < size.outputs) sums[Size(j)] += static_cast<double>(of_y[Size(i)]);
  }
  const T* from = layer.c.template Input<T>(of_y);
  const T* x = layer.c.template Input<T>(layer.x);
  float* to = layer.c.template Changed<float>("w gradient", before, expected, kExact);
  float* bias_to = layer.c.template Changed<float>("bias gradient", bias_before, sums, kExact);
  layer.c.launch = [=, tools = layer.tools] {
    LinearBackwardWeight(tools, size, alpha, from, x, to, bias ? bias_to : nullptr);
  };
  return layer.c;
}

/// d = alpha · op(a) · op(b) + beta · c with a c of its own, as Newton-Schulz steps have it.
template <class T>
KernelCase SumCase(KernelMemory& memory, Products& products, int64_t m, int64_t n, int64_t k,
                   bool flip_a, bool flip_b) {
  KernelCase c(memory, true);
  Product<T, T> product = {.m = m, .n = n, .k = k};
  product.transpose_a = flip_a ? Transpose::kYes : Transpose::kNo;
  product.transpose_b = flip_b ? Transpose::kYes : Transpose::kNo;
  product.lda = flip_a ? m : k;
  product.ldb = flip_b ? k : n;
  product.ldd = n;
  product.alpha = 2.0315f;
  product.beta = -4.7750f;
  const Values a = Rounded<T>(Normal(m * k, 1, 0.3));
  const Values b = Rounded<T>(Normal(k * n, 2, 0.3));
  const Values summand = Rounded<T>(Normal(m * n, 3, 0.3));
  auto expected = Multiplied(m, n, k, {a, product.lda, flip_a}, {b, product.ldb, flip_b});
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<double>(product.alpha) * expected[i] +
                  static_cast<double>(product.beta) * static_cast<double>(summand[i]);
  }
  product.a = c.Input<T>(a);
  product.b = c.Input<T>(b);
  product.c = c.Input<T>(summand);
  product.d = c.Result<T>("d", m * n, expected, kProductTolerance<T>);
  c.launch = [=, &products] { CHECK(products.Multiply(nullptr, product)); };
  return c;
}

template <class T>
void AddLinearCases(Products& products, const std::string& type, std::vector<NamedCase>& cases) {
  const auto add = [&](const std::string& name, auto make) {
    cases.push_back({name + "_" + type,
                     [&products, make](KernelMemory& memory) { return make(memory, products); }});
  };
  for (const LinearSize& size :
       {LinearSize{19, 32, 48, 48}, {40, 64, 16, 80}, {7, 13, 9, 11}, {1, 8, 8, 8}}) {
    const std::string of = "_" + std::to_string(size.rows) + "x" + std::to_string(size.inputs) +
                           "x" + std::to_string(size.outputs);
    for (const bool bias : {false, true}) {
      const std::string with = of + (bias ? "_Bias" : "");
      add("Linear" + with, [=](auto& m, auto& p) { return ForwardCase<T>(m, p, size, bias); });
      add("LinearAdd" + with, [=](auto& m, auto& p) { return AddCase<T>(m, p, size, bias); });
      add("LinearGelu" + with,
          [=](auto& m, auto& p) { return GeluCase<T>(m, p, size, bias, true); });
      add("LinearThenGelu" + with,
          [=](auto& m, auto& p) { return GeluCase<T>(m, p, size, bias, false); });
      add("LinearWeight" + with,
          [=](auto& m, auto& p) { return WeightCase<T>(m, p, size, bias, bias ? 1.0f : 0.25f); });
    }
    add("LinearInput" + of, [=](auto& m, auto& p) { return InputCase<T>(m, p, size, 0.5f, 0); });
    add("LinearInputAdded" + of, [=](auto& m, auto& p) { return InputCase<T>(m, p, size, 1, 1); });
    add("LinearInputGelu" + of, [=](auto& m, auto& p) { return GeluGradientCase<T>(m, p, size); });
  }
  for (const bool flip_a : {false, true}) {
    for (const bool flip_b : {false, true}) {
      const std::string flips = std::string(flip_a ? "_T" : "_N") + (flip_b ? "T" : "N");
      add("Product_24x40x16" + flips,
          [=](auto& m, auto& p) { return SumCase<T>(m, p, 24, 40, 16, flip_a, flip_b); });
      add("Product_5x3x7" + flips,
          [=](auto& m, auto& p) { return SumCase<T>(m, p, 5, 3, 7, flip_a, flip_b); });
    }
  }
}

}  // namespace

std::vector<NamedCase> LinearCases(Products& products) {
  std::vector<NamedCase> cases;
  AddLinearCases<float>(products, "float", cases);
  AddLinearCases<Bfloat16>(products, "bf16", cases);
  return cases;
}

}  // namespace pipelag::cuda
