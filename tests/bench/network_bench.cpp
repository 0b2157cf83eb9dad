// How much of a training step is matrix products: forward, backward and AdamW of the whole network
// on one thread against the products alone, in turns within one run. 4 layers, 4 heads, 256
// channels, sequence 128. "of_ceiling" is what is left of the products' speed: the
// rest passes over activations, which no matrix product can hide. MEASURED
#include <benchmark/benchmark.h>

#include <ctime>
#include <vector>

#include "runtime/network/gemm.h"
#include "runtime/network/stage.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {
namespace {

NetworkShape Shape(int vocabulary) {
  NetworkShape shape;
  shape.layers = 4;
  shape.heads = 4;
  shape.hidden = 256;
  shape.sequence = 128;
  shape.vocabulary = vocabulary;
  return shape;
}

constexpr int kBatch = 8;

/// A step of the whole network: a batch in micro-batches of `size` sequences, and one update.
class Training {
 public:
  Training(const NetworkShape& shape, int size)
      : microbatches_(kBatch / size),
        network_(shape, {0, shape.layers}, size),
        optimizer_(MakeOptimizer({.name = "adamw"}, network_.layout())),
        weights_(static_cast<size_t>(network_.layout().size())),
        gradients_(weights_.size()),
        activation_(static_cast<size_t>(network_.activation_elements())),
        tokens_(static_cast<size_t>(size * shape.sequence)) {
    InitialiseWeights(network_.layout(), shape, 1, weights_.data());
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<Token>(i * 37 % 251);
  }

  void Step() {
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
      network_.Forward(weights_.data(), tokens_.data(), nullptr, tokens_.data(), activation_.data(),
                       nullptr);
      network_.Backward(weights_.data(), activation_.data(), tokens_.data(), tokens_.data(),
                        nullptr, 1e-3f, nullptr, gradients_.data());
    }
    optimizer_->Step(gradients_.data(), weights_.data(), weights_.data(), 1e-3f, ++number_);
    std::fill(gradients_.begin(), gradients_.end(), 0.0f);
  }

 private:
  int microbatches_;
  StageNetwork<float> network_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::vector<float> activation_;
  std::vector<Token> tokens_;
  int64_t number_ = 0;
};

/// The products of such a step, of the same shapes, on buffers of their own.
class Products {
 public:
  Products(const NetworkShape& shape, int size)
      : shape_(shape),
        size_(size),
        rows_(size * shape.sequence),
        x_(Values(rows_ * std::max<int64_t>(4 * shape.hidden, shape.vocabulary))),
        y_(x_),
        w_(Values(int64_t{shape.hidden} * std::max<int64_t>(4 * shape.hidden, shape.vocabulary))),
        dw_(w_) {}

  void Step() {
    for (int k = 0; k < kBatch / size_; ++k) Microbatch();
  }

 private:
  void Microbatch() {
    const int64_t c = shape_.hidden;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      Linear(c, 3 * c);
      Attention();
      Linear(c, c);
      Linear(c, 4 * c);
      Linear(4 * c, c);
    }
    Linear(c, shape_.vocabulary);
  }

  static std::vector<float> Values(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13) * 0.01f;
    return values;
  }

  void Linear(int64_t inputs, int64_t outputs) {
    Multiply<float>(Transpose::kNo, Transpose::kYes, rows_, outputs, inputs, 1, x_.data(), inputs,
                    w_.data(), inputs, 0, y_.data(), outputs);
    Multiply<float>(Transpose::kNo, Transpose::kNo, rows_, inputs, outputs, 1, y_.data(), outputs,
                    w_.data(), inputs, 0, x_.data(), inputs);
    Multiply<float>(Transpose::kYes, Transpose::kNo, outputs, inputs, rows_, 1, y_.data(), outputs,
                    x_.data(), inputs, 1, dw_.data(), inputs);
    benchmark::DoNotOptimize(dw_.data());
  }

  void Attention() {
    const int64_t t = shape_.sequence;
    const int64_t d = shape_.hidden / shape_.heads;
    const int64_t stride = 3 * shape_.hidden;
    for (int64_t head = 0; head < int64_t{size_} * shape_.heads; ++head) {
      for (int wide = 0; wide < 2; ++wide) {  // scores, and their gradient
        Multiply<float>(Transpose::kNo, Transpose::kYes, t, t, d, 1, x_.data(), stride, y_.data(),
                        stride, 0, w_.data(), t);
      }
      for (int narrow = 0; narrow < 4; ++narrow) {  // attended, and gradients of q, k and v
        Multiply<float>(narrow < 2 ? Transpose::kNo : Transpose::kYes, Transpose::kNo, t, d, t, 1,
                        w_.data(), t, x_.data(), stride, 0, y_.data(), stride);
      }
    }
  }

  NetworkShape shape_;
  int size_;
  int64_t rows_;
  std::vector<float> x_, y_, w_, dw_;
};

void OfCeiling(benchmark::State& state) {
  PrepareThread();
  const NetworkShape shape = Shape(static_cast<int>(state.range(0)));
  const auto size = static_cast<int>(state.range(1));
  Training training(shape, size);
  Products products(shape, size);
  std::clock_t whole = 0;
  std::clock_t ceiling = 0;
  const auto timed = [](std::clock_t& sum, auto& what) {
    const std::clock_t start = std::clock();
    what.Step();
    sum += std::clock() - start;
  };
  for (auto _ : state) {
    timed(whole, training);
    timed(ceiling, products);
  }
  const double tokens = static_cast<double>(state.iterations()) * kBatch * shape.sequence;
  const auto rate = [&](std::clock_t time) {
    return tokens * CLOCKS_PER_SEC / static_cast<double>(time);
  };
  state.counters["tokens/s"] = rate(whole);
  state.counters["ceiling"] = rate(ceiling);
  state.counters["of_ceiling"] = static_cast<double>(ceiling) / static_cast<double>(whole);
}

BENCHMARK(OfCeiling)
    ->ArgNames({"vocabulary", "sequences"})
    ->Args({256, 8})
    ->Args({256, 2})
    ->Args({256, 1})
    ->Args({50257, 8})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(5);

}  // namespace
}  // namespace pipelag

BENCHMARK_MAIN();
