// How much of a training step is matrix products: forward, backward and AdamW of the whole network
// on one thread against the products alone, in turns within one run. 4 layers, 4 heads, 256
// channels, sequence 128; a batch of 8 sequences. "of_ceiling" is what is left of the products'
// speed; the rest passes over activations. Measured on a Sapphire Rapids at 5,100 to 5,700 tokens/s
// (256 tokens), three runs: 0.85 to 0.87 with micro-batches of 8 sequences, 0.84 to 0.85 of 2, 0.84
// to 0.86 of 1. With all products on the same few matrices, which then stay in the cache, the
// ceiling is higher: 0.77 to 0.81 (one reading 0.87).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>
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

/// The products of such a step and nothing else, each on matrices where training has them: weights,
/// gradients and results of every layer are its own, gradients of activations are scratch.
class Products {
 public:
  Products(const NetworkShape& shape, int size)
      : shape_(shape), size_(size), rows_(size * shape.sequence) {
    const int64_t c = shape.hidden;
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (const auto& [inputs, outputs] : {std::pair{c, 3 * c}, {c, c}, {c, 4 * c}, {4 * c, c}}) {
        AddLinear(inputs, outputs);
      }
      attention_.push_back({Values(int64_t{size} * shape.heads * shape.sequence * shape.sequence),
                            Values(rows_ * c)});
    }
    AddLinear(c, shape.vocabulary);
    input_ = Values(rows_ * c);
    wide_ = Values(rows_ * std::max<int64_t>(4 * c, shape.vocabulary));
    narrow_ = Values(rows_ * 4 * c);
    scores_ = Values(int64_t{shape.sequence} * shape.sequence);
  }

  void Step() {
    for (int k = 0; k < kBatch / size_; ++k) {
      for (size_t i = 0; i < linear_.size(); ++i) Forward(i);
      for (size_t i = linear_.size(); i-- > 0;) Backward(i);
    }
    benchmark::DoNotOptimize(linear_.front().gradient.data());
  }

 private:
  struct Linear {
    int64_t inputs, outputs;
    std::vector<float> weights, gradient, y;
  };
  struct Heads {
    std::vector<float> scores, attended;
  };

  static std::vector<float> Values(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13) * 0.01f;
    return values;
  }

  void AddLinear(int64_t inputs, int64_t outputs) {
    linear_.push_back({inputs, outputs, Values(inputs * outputs), Values(inputs * outputs),
                       Values(rows_ * outputs)});
  }

  /// Behind the qkv of every layer come its heads.
  bool HasHeads(size_t i) const { return i % 4 == 0 && i + 1 < linear_.size(); }
  const float* InputOf(size_t i) const {
    if (i == 0) return input_.data();
    return HasHeads(i - 1) ? attention_[(i - 1) / 4].attended.data() : linear_[i - 1].y.data();
  }

  void Forward(size_t i) {
    Linear& at = linear_[i];
    Multiply<float>(Transpose::kNo, Transpose::kYes, rows_, at.outputs, at.inputs, 1, InputOf(i),
                    at.inputs, at.weights.data(), at.inputs, 0, at.y.data(), at.outputs);
    if (!HasHeads(i)) return;
    ForHeads(i, [&](const float* q, const float* k, const float* v, float* p, float* out, float*) {
      Multiply<float>(Transpose::kNo, Transpose::kYes, t(), t(), d(), 1, q, qkv(), k, qkv(), 0, p,
                      t());
      Multiply<float>(Transpose::kNo, Transpose::kNo, t(), d(), t(), 1, p, t(), v, qkv(), 0, out,
                      c());
    });
  }

  void Backward(size_t i) {
    Linear& at = linear_[i];
    if (HasHeads(i)) {
      ForHeads(i, [&](const float* q, const float* k, const float* v, const float* p, float* out,
                      float* dqkv) {
        Multiply<float>(Transpose::kYes, Transpose::kNo, t(), d(), t(), 1, p, t(), out, c(), 0,
                        dqkv + 2 * c(), qkv());
        Multiply<float>(Transpose::kNo, Transpose::kYes, t(), t(), d(), 1, out, c(), v, qkv(), 0,
                        scores_.data(), t());
        Multiply<float>(Transpose::kNo, Transpose::kNo, t(), d(), t(), 1, scores_.data(), t(), k,
                        qkv(), 0, dqkv, qkv());
        Multiply<float>(Transpose::kYes, Transpose::kNo, t(), d(), t(), 1, scores_.data(), t(), q,
                        qkv(), 0, dqkv + c(), qkv());
      });
    }
    Multiply<float>(Transpose::kYes, Transpose::kNo, at.outputs, at.inputs, rows_, 1, wide_.data(),
                    at.outputs, InputOf(i), at.inputs, 1, at.gradient.data(), at.inputs);
    Multiply<float>(Transpose::kNo, Transpose::kNo, rows_, at.inputs, at.outputs, 1, wide_.data(),
                    at.outputs, at.weights.data(), at.inputs, 0, narrow_.data(), at.inputs);
  }

  template <class Body>
  void ForHeads(size_t i, Body body) {
    Heads& heads = attention_[i / 4];
    for (int64_t b = 0; b < size_; ++b) {
      for (int64_t h = 0; h < shape_.heads; ++h) {
        const float* q = linear_[i].y.data() + b * t() * qkv() + h * d();
        body(q, q + c(), q + 2 * c(), heads.scores.data() + (b * shape_.heads + h) * t() * t(),
             heads.attended.data() + b * t() * c() + h * d(),
             wide_.data() + b * t() * qkv() + h * d());
      }
    }
  }

  int64_t t() const { return shape_.sequence; }
  int64_t c() const { return shape_.hidden; }
  int64_t d() const { return shape_.hidden / shape_.heads; }
  int64_t qkv() const { return 3 * c(); }

  NetworkShape shape_;
  int size_;
  int64_t rows_;
  std::vector<Linear> linear_;
  std::vector<Heads> attention_;
  std::vector<float> input_, wide_, narrow_, scores_;
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
