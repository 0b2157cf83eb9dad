// The forward pass against the plainest GPT-2 there is: one position at a time, in double, tensors
// found by name. Finite differences prove the backward only relative to the forward.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/runtime/plain_forward.h"

namespace pipelag {
namespace {

using Row = std::vector<double>;

class PlainGpt {
 public:
  PlainGpt(const NetworkShape& shape, const StageLayout& layout, const double* weights)
      : shape_(shape), layout_(layout), weights_(weights) {}

  /// Σ −ln p(target) over one sequence.
  double Loss(const Token* tokens, const Token* targets) const {
    std::vector<Row> x;
    for (int t = 0; t < shape_.sequence; ++t) {
      Row row;
      for (int c = 0; c < shape_.hidden; ++c) {
        row.push_back(At("wte.weight", tokens[t], c) + At("wpe.weight", t, c));
      }
      x.push_back(row);
    }
    for (int layer = 0; layer < shape_.layers; ++layer) Block("h." + std::to_string(layer), x);
    double loss = 0;
    for (int t = 0; t < shape_.sequence; ++t) {
      const Row norm = Norm("ln_f", x[static_cast<size_t>(t)]);
      double sum = 0;
      double target = 0;
      for (int v = 0; v < shape_.vocabulary; ++v) {
        double logit = 0;
        for (int c = 0; c < shape_.hidden; ++c) {
          logit += At("lm_head.weight", v, c) * norm[static_cast<size_t>(c)];
        }
        sum += std::exp(logit);
        if (v == targets[t]) target = logit;
      }
      loss += std::log(sum) - target;
    }
    return loss;
  }

 private:
  double At(const std::string& name, int row, int col) const {
    const StageTensor& tensor = layout_.Find(name);
    return weights_[tensor.offset + static_cast<int64_t>(row) * tensor.cols + col];
  }

  Row Norm(const std::string& name, const Row& x) const {
    double mean = 0;
    double variance = 0;
    for (const double value : x) mean += value / shape_.hidden;
    for (const double value : x) variance += (value - mean) * (value - mean) / shape_.hidden;
    Row y;
    for (int c = 0; c < shape_.hidden; ++c) {
      y.push_back((x[static_cast<size_t>(c)] - mean) / std::sqrt(variance + 1e-5) *
                      At(name + ".weight", c, 0) +
                  At(name + ".bias", c, 0));
    }
    return y;
  }

  Row Linear(const std::string& name, const Row& x) const {
    Row y;
    for (int o = 0; o < layout_.Find(name + ".weight").rows; ++o) {
      double sum = At(name + ".bias", o, 0);
      for (size_t i = 0; i < x.size(); ++i) {
        sum += At(name + ".weight", o, static_cast<int>(i)) * x[i];
      }
      y.push_back(sum);
    }
    return y;
  }

  void Block(const std::string& name, std::vector<Row>& x) const {
    const int width = shape_.hidden / shape_.heads;
    std::vector<Row> qkv;
    for (const Row& row : x)
      qkv.push_back(Linear(name + ".attn.c_attn", Norm(name + ".ln_1", row)));
    for (size_t t = 0; t < x.size(); ++t) {
      Row attended(x[t].size());
      for (int h = 0; h < shape_.heads; ++h) {
        const auto part = [&](size_t row, int which, int i) {
          return qkv[row][static_cast<size_t>(which * shape_.hidden + h * width + i)];
        };
        Row p;
        double sum = 0;
        for (size_t j = 0; j <= t; ++j) {
          double score = 0;
          for (int i = 0; i < width; ++i) score += part(t, 0, i) * part(j, 1, i);
          p.push_back(std::exp(score / std::sqrt(width)));
          sum += p.back();
        }
        for (size_t j = 0; j <= t; ++j) {
          for (int i = 0; i < width; ++i) {
            attended[static_cast<size_t>(h * width + i)] += p[j] / sum * part(j, 2, i);
          }
        }
      }
      Add(Linear(name + ".attn.c_proj", attended), x[t]);
    }
    for (Row& row : x) {
      Row hidden = Linear(name + ".mlp.c_fc", Norm(name + ".ln_2", row));
      for (double& value : hidden) {
        const double inner = std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value);
        value = 0.5 * value * (1 + std::tanh(inner));
      }
      Add(Linear(name + ".mlp.c_proj", hidden), row);
    }
  }

  static void Add(const Row& from, Row& to) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }

  const NetworkShape& shape_;
  const StageLayout& layout_;
  const double* weights_;
};

TEST(StageNetwork, ForwardIsThatOfAPlainGpt) {
  const NetworkShape shape = {
      .layers = 2, .hidden = 12, .heads = 3, .sequence = 7, .vocabulary = 13};
  ExpectForwardOf<PlainGpt>(shape, 1e-13);
}

}  // namespace
}  // namespace pipelag
