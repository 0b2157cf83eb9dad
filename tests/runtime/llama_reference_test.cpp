// The forward pass of a Llama against the plainest there is: one position at a time, in double,
// with complex numbers for rotations, tensors found by name.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <string>

#include "tests/runtime/plain_forward.h"

namespace pipelag {
namespace {

using Row = std::vector<double>;

class PlainLlama {
 public:
  PlainLlama(const NetworkShape& shape, const StageLayout& layout, const double* weights)
      : shape_(shape), layout_(layout), weights_(weights) {}

  /// Σ −ln p(target) over one sequence.
  double Loss(const Token* tokens, const Token* targets) const {
    std::vector<Row> x;
    for (int t = 0; t < shape_.sequence; ++t) {
      Row& row = x.emplace_back();
      for (int c = 0; c < shape_.hidden; ++c) row.push_back(At("embed_tokens", tokens[t], c));
    }
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer) + ".";
      Attend(name, x);
      for (Row& row : x) {
        const Row norm = Norm(name + "post_attention_layernorm", row);
        Row hidden = Linear(name + "mlp.gate_proj", norm);
        const Row up = Linear(name + "mlp.up_proj", norm);
        for (size_t i = 0; i < hidden.size(); ++i) {
          hidden[i] = hidden[i] / (1 + std::exp(-hidden[i])) * up[i];
        }
        Add(Linear(name + "mlp.down_proj", hidden), row);
      }
    }
    double loss = 0;
    for (int t = 0; t < shape_.sequence; ++t) {
      const Row logits = Linear("lm_head", Norm("norm", x[static_cast<size_t>(t)]));
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit);
      loss += std::log(sum) - logits[targets[t]];
    }
    return loss;
  }

 private:
  double At(const std::string& name, int row, int col) const {
    const StageTensor& tensor = layout_.Find(name + ".weight");
    return weights_[tensor.offset + static_cast<int64_t>(row) * tensor.cols + col];
  }

  Row Norm(const std::string& name, const Row& x) const {
    double square = 0;
    for (const double value : x) square += value * value / shape_.hidden;
    Row y;
    for (int c = 0; c < shape_.hidden; ++c) {
      y.push_back(x[static_cast<size_t>(c)] / std::sqrt(square + 1e-5) * At(name, c, 0));
    }
    return y;
  }

  Row Linear(const std::string& name, const Row& x) const {
    Row y;
    for (int o = 0; o < layout_.Find(name + ".weight").rows; ++o) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += At(name, o, static_cast<int>(i)) * x[i];
      y.push_back(sum);
    }
    return y;
  }

  /// A head's channels, pairs (i, i + D/2) turned by position · 10000^(−2i/D).
  Row Rotated(const Row& x, int head, size_t position) const {
    const int d = shape_.hidden / shape_.heads;
    Row y(static_cast<size_t>(d));
    for (int i = 0; i < d / 2; ++i) {
      const std::complex<double> pair(x[static_cast<size_t>(head * d + i)],
                                      x[static_cast<size_t>(head * d + d / 2 + i)]);
      const auto turned =
          pair * std::polar(1.0, static_cast<double>(position) * std::pow(10000.0, -2.0 * i / d));
      y[static_cast<size_t>(i)] = turned.real();
      y[static_cast<size_t>(d / 2 + i)] = turned.imag();
    }
    return y;
  }

  void Attend(const std::string& name, std::vector<Row>& x) const {
    const int d = shape_.hidden / shape_.heads;
    const int group = shape_.heads / shape_.key_value_heads;
    std::vector<Row> q, k, v;
    for (const Row& row : x) {
      const Row norm = Norm(name + "input_layernorm", row);
      q.push_back(Linear(name + "self_attn.q_proj", norm));
      k.push_back(Linear(name + "self_attn.k_proj", norm));
      v.push_back(Linear(name + "self_attn.v_proj", norm));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Row attended(x[t].size());
      for (int h = 0; h < shape_.heads; ++h) {
        const Row query = Rotated(q[t], h, t);
        Row p;
        double sum = 0;
        for (size_t j = 0; j <= t; ++j) {
          const Row key = Rotated(k[j], h / group, j);
          double score = 0;
          for (size_t i = 0; i < key.size(); ++i) score += query[i] * key[i];
          p.push_back(std::exp(score / std::sqrt(d)));
          sum += p.back();
        }
        for (size_t j = 0; j <= t; ++j) {
          for (int i = 0; i < d; ++i) {
            attended[static_cast<size_t>(h * d + i)] +=
                p[j] / sum * v[j][static_cast<size_t>(h / group * d + i)];
          }
        }
      }
      Add(Linear(name + "self_attn.o_proj", attended), x[t]);
    }
  }

  static void Add(const Row& from, Row& to) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }

  const NetworkShape& shape_;
  const StageLayout& layout_;
  const double* weights_;
};

TEST(StageNetwork, ForwardIsThatOfAPlainLlama) {
  const NetworkShape shape = {.layers = 2,
                              .hidden = 16,
                              .heads = 4,
                              .sequence = 7,
                              .vocabulary = 13,
                              .norm = NormChoice::kRms,
                              .positions = PositionChoice::kRotary,
                              .mlp = MlpChoice::kSwiGlu,
                              .ffn = 20,
                              .key_value_heads = 2,
                              .bias = false};
  ExpectForwardOf<PlainLlama>(shape, 1e-12);
}

}  // namespace
}  // namespace pipelag
