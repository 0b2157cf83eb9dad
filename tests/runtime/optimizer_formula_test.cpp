// The other optimizers against their formulas in double.
#include "tests/runtime/optimizer_rules.h"

namespace pipelag {
namespace {

constexpr double kLr = static_cast<double>(kRate);

OptimizerOptions Named(const char* name) {
  OptimizerOptions options;
  options.name = name;
  return options;
}

double Decay(const StageTensor& tensor) { return tensor.role == TensorRole::kVector ? 0 : 0.1; }
double Decayed(const StageTensor& tensor, double x) { return x * (1 - kLr * Decay(tensor)); }
bool Matrix(const StageTensor& tensor) { return tensor.role == TensorRole::kMatrix; }

/// State in double that a rule's copies share.
struct State {
  Tensor a, b, c, d;
  double product = 1;
};
std::shared_ptr<State> StateOf() { return std::make_shared<State>(); }

Rule SgdRule(double weight, bool nesterov) {
  const auto s = StateOf();
  return [=](const StageTensor&, int, const Tensor& g, Tensor& x) {
    s->a.resize(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      s->a[i] = 0.9 * s->a[i] + weight * g[i];
      x[i] -= kLr * (nesterov ? 0.9 * s->a[i] + weight * g[i] : s->a[i]);
    }
  };
}

TEST(Sgd, HasASumAndAMeanFormAndNesterovs) {
  for (const bool nesterov : {false, true}) {
    for (const char* name : {"sgd", "sgd-ema"}) {
      OptimizerOptions options = Named(name);
      options.nesterov = nesterov;
      const double weight = options.name == "sgd" ? 1 : 0.1;
      ExpectFollows(
          options, [&] { return SgdRule(weight, nesterov); }, Every, 1e-6);
    }
  }
}

TEST(NAdam, FollowsItsFormula) {
  const auto make = [] {
    const auto s = StateOf();
    return Rule([s](const StageTensor& tensor, int n, const Tensor& g, Tensor& x) {
      s->a.resize(x.size());
      s->b.resize(x.size());
      const auto mu = [](int k) { return 0.99 * (1 - 0.5 * std::pow(0.96, 0.004 * k)); };
      s->product *= mu(n);
      for (size_t i = 0; i < x.size(); ++i) {
        s->a[i] = 0.99 * s->a[i] + 0.01 * g[i];
        s->b[i] = 0.999 * s->b[i] + 0.001 * g[i] * g[i];
        const double mean = (1 - mu(n)) * g[i] / (1 - s->product) +
                            mu(n + 1) * s->a[i] / (1 - s->product * mu(n + 1));
        const double root = std::sqrt(s->b[i] / (1 - std::pow(0.999, n)));
        x[i] = Decayed(tensor, x[i]) - kLr * mean / (root + 1e-8);
      }
    });
  };
  ExpectFollows(Named("nadam"), make, Every, 1e-6);
}

TEST(Lion, FollowsItsFormula) {
  const auto make = [] {
    const auto s = StateOf();
    return Rule([s](const StageTensor& tensor, int, const Tensor& g, Tensor& x) {
      s->a.resize(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        const double direction = 0.9 * s->a[i] + 0.1 * g[i];
        x[i] = Decayed(tensor, x[i]) - kLr * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
        s->a[i] = 0.99 * s->a[i] + 0.01 * g[i];
      }
    });
  };
  ExpectFollows(Named("lion"), make, Every, 1e-6);
}

TEST(Adan, FollowsItsFormula) {
  const auto make = [] {
    const auto s = StateOf();
    return Rule([s](const StageTensor& tensor, int n, const Tensor& g, Tensor& x) {
      for (Tensor* t : {&s->a, &s->b, &s->c}) t->resize(x.size());
      if (n == 1) s->d = g;
      for (size_t i = 0; i < x.size(); ++i) {
        const double d = g[i] - s->d[i];
        s->a[i] = 0.98 * s->a[i] + 0.02 * g[i];
        s->b[i] = 0.92 * s->b[i] + 0.08 * d;
        s->c[i] = 0.99 * s->c[i] + 0.01 * (g[i] + 0.92 * d) * (g[i] + 0.92 * d);
        const double mean =
            s->a[i] / (1 - std::pow(0.98, n)) + 0.92 * s->b[i] / (1 - std::pow(0.92, n));
        const double root = std::sqrt(s->c[i] / (1 - std::pow(0.99, n)));
        x[i] = Decayed(tensor, x[i]) - kLr * mean / (root + 1e-8);
      }
      s->d = g;
    });
  };
  ExpectFollows(Named("adan"), make, Every, 1e-6);
}

TEST(Mars, IsAdamWOnReducedGradients) {
  const auto make = [] {
    const auto s = StateOf();
    const Rule adam = AdamWRule(0.95, 0.99, 1e-8, 0.1);
    return Rule([=](const StageTensor& tensor, int n, const Tensor& g, Tensor& x) {
      s->a.resize(x.size());
      Tensor c(x.size());
      double norm = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        c[i] = g[i] + 0.025 * 0.95 / 0.05 * (g[i] - s->a[i]);
        norm += c[i] * c[i];
      }
      for (double& value : c) value /= std::max(1.0, std::sqrt(norm));
      s->a = g;
      adam(tensor, n, c, x);
    });
  };
  const auto matrices = [](const StageTensor& tensor) {
    return tensor.role != TensorRole::kVector;
  };
  ExpectFollows(Named("mars"), make, matrices, 1e-6);
  ExpectFollows(
      Named("mars"), [] { return AdamWRule(0.9, 0.95, 1e-8, 0.1); },
      [](const StageTensor& tensor) { return tensor.role == TensorRole::kVector; }, 1e-6);
}

/// Muon, with rows brought to one size if `rows_too`.
Rule MuonRule(bool jordan, bool rows_too) {
  const auto s = StateOf();
  return [=](const StageTensor& tensor, int, const Tensor& g, Tensor& x) {
    const auto rows = static_cast<size_t>(tensor.rows);
    const auto cols = static_cast<size_t>(tensor.cols);
    s->a.resize(x.size());
    s->b.resize(rows);
    Tensor direction(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      s->a[i] = 0.95 * s->a[i] + 0.05 * g[i];
      direction[i] = 0.05 * g[i] + 0.95 * s->a[i];
    }
    Tensor o = NewtonSchulz(direction, rows, cols);
    if (rows_too) {
      double before = 0;
      double after = 0;
      for (const double value : o) before += value * value;
      for (size_t r = 0; r < rows; ++r) {
        double mean = 0;
        for (size_t i = 0; i < cols; ++i) mean += o[r * cols + i] * o[r * cols + i] / tensor.cols;
        s->b[r] = 0.95 * s->b[r] + 0.05 * mean;
        for (size_t i = 0; i < cols; ++i) o[r * cols + i] /= std::sqrt(s->b[r]) + 1e-10;
      }
      for (const double value : o) after += value * value;
      for (double& value : o) value *= std::sqrt(before) / std::sqrt(after);
    }
    const double scale = jordan ? std::sqrt(std::max(1.0, 1.0 * tensor.rows / tensor.cols))
                                : 0.2 * std::sqrt(std::max(tensor.rows, tensor.cols));
    for (size_t i = 0; i < x.size(); ++i) x[i] = Decayed(tensor, x[i]) - kLr * scale * o[i];
  };
}

/// Of the largest weight, which is not larger than five displacements here.
constexpr double kNewtonSchulzInFloat = 2e-6;

TEST(Muon, HasJordansScaleToo) {
  OptimizerOptions options = Named("muon");
  options.muon_scale = MuonScale::kJordan;
  ExpectFollows(
      options, [] { return MuonRule(true, false); }, Matrix, kNewtonSchulzInFloat);
}

TEST(NorMuon, FollowsItsFormulaOnMatrices) {
  ExpectFollows(
      Named("normuon"), [] { return MuonRule(false, true); }, Matrix, kNewtonSchulzInFloat);
}

TEST(Muon, GivesTheTensorsOfAdamWTheirOwnRate) {
  const StageLayout layout(Shape(), {0, 2});
  for (const char* name : {"muon", "normuon"}) {
    OptimizerOptions options = Named(name);
    options.learning_rate = kRate;
    const std::vector<float> plain = Trained(options, layout);
    options.muon_aux_learning_rate = 0.5f * kRate;
    const std::vector<float> own = Trained(options, layout);
    // AdamW alone, at half the rate: what is asked for, its decay included.
    const auto adamw = MakeOptimizer({}, layout);
    std::vector<float> half = Initial(layout);
    for (int n = 1; n <= kUpdates; ++n) {
      adamw->Step(Gradients(layout, n).data(), half.data(), half.data(), 0.5f * kRate, n);
    }
    for (const StageTensor& tensor : layout.tensors()) {
      const auto& expected = Matrix(tensor) ? plain : half;
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
        ASSERT_EQ(own[static_cast<size_t>(i)], expected[static_cast<size_t>(i)]) << tensor.name;
      }
    }
  }
}

/// Orthonormal columns spanning those of `a` in order (Gram-Schmidt, twice).
Tensor Orthonormal(Tensor a, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    for (size_t j = 0; j < 2 * k; ++j) {
      double dot = 0;
      for (size_t i = 0; i < n; ++i) dot += a[i * n + j % k] * a[i * n + k];
      for (size_t i = 0; i < n; ++i) a[i * n + k] -= dot * a[i * n + j % k];
    }
    double norm = 0;
    for (size_t i = 0; i < n; ++i) norm += a[i * n + k] * a[i * n + k];
    for (size_t i = 0; i < n; ++i) a[i * n + k] /= std::sqrt(norm);
  }
  return a;
}

/// Columns are eigenvectors, found by many power iterations: slow, and unlike what is tested.
Tensor EigenBasisOf(const Tensor& a, size_t n) {
  Tensor q(n * n);
  for (size_t i = 0; i < n; ++i) q[i * n + i] = 1;
  for (int k = 0; k < 20000; ++k) q = Orthonormal(Product(a, q, n, n, n), n);
  return q;
}

/// For square matrices, whose first gradient has no eigenvalue twice.
Rule RotatedRule(double beta1, double beta2, int every) {
  const auto s = StateOf();
  const auto left = std::make_shared<std::pair<Tensor, Tensor>>();  // mean, basis
  const auto right = std::make_shared<std::pair<Tensor, Tensor>>();
  return [=](const StageTensor& tensor, int n, const Tensor& g, Tensor& x) {
    const auto k = static_cast<size_t>(tensor.rows);
    const auto observe = [&] {
      const Tensor l = Product(g, Flip(g, k, k), k, k, k);
      const Tensor r = Product(Flip(g, k, k), g, k, k, k);
      for (size_t i = 0; i < k * k; ++i) {
        left->first[i] = beta2 * left->first[i] + (1 - beta2) * l[i];
        right->first[i] = beta2 * right->first[i] + (1 - beta2) * r[i];
      }
    };
    for (Tensor* t : {&s->a, &s->b, &left->first, &right->first}) t->resize(k * k);
    if (n == 1) {
      observe();
      left->second = EigenBasisOf(left->first, k);
      right->second = EigenBasisOf(right->first, k);
      for (double& value : x) value = Decayed(tensor, value);
      return;
    }
    const int real = n - 1;
    const auto rotate = [&](const Tensor& t) {
      return Product(Product(Flip(left->second, k, k), t, k, k, k), right->second, k, k, k);
    };
    for (size_t i = 0; i < k * k; ++i) s->a[i] = beta1 * s->a[i] + (1 - beta1) * g[i];
    const Tensor rotated = rotate(g);
    Tensor direction = rotate(s->a);
    for (size_t i = 0; i < k * k; ++i) {
      s->b[i] = beta2 * s->b[i] + (1 - beta2) * rotated[i] * rotated[i];
      direction[i] /= std::sqrt(s->b[i]) + 1e-8;
    }
    direction =
        Product(Product(left->second, direction, k, k, k), Flip(right->second, k, k), k, k, k);
    const double step = kLr * std::sqrt(1 - std::pow(beta2, real)) / (1 - std::pow(beta1, real));
    for (size_t i = 0; i < k * k; ++i) x[i] = Decayed(tensor, x[i]) - step * direction[i];
    observe();
    if (real % every != 0) return;
    for (const bool rows : {true, false}) {
      const auto& side = rows ? left : right;
      const Tensor power = Product(side->first, side->second, k, k, k);
      std::vector<std::pair<double, size_t>> order;
      for (size_t j = 0; j < k; ++j) {
        double estimate = 0;
        for (size_t i = 0; i < k; ++i) estimate += side->second[i * k + j] * power[i * k + j];
        order.emplace_back(-estimate, j);
      }
      std::sort(order.begin(), order.end());
      Tensor sorted(k * k);
      const Tensor squares = s->b;
      for (size_t i = 0; i < k; ++i) {
        for (size_t j = 0; j < k; ++j) {
          sorted[i * k + j] = power[i * k + order[j].second];
          s->b[i * k + j] =
              rows ? squares[order[i].second * k + j] : squares[i * k + order[j].second];
        }
      }
      side->second = Orthonormal(sorted, k);
    }
  };
}

bool Square(const StageTensor& tensor) { return Matrix(tensor) && tensor.rows == tensor.cols; }

TEST(Soap, FollowsItsFormulaOnSquareMatrices) {
  OptimizerOptions options = Named("soap");
  options.basis_updates = 2;
  ExpectFollows(
      options, [] { return RotatedRule(0.95, 0.95, 2); }, Square, 1e-5);
}

TEST(BasisRotation, FollowsItsFormulaOnSquareMatrices) {
  OptimizerOptions options;
  options.basis_updates = 2;
  CorrectionOptions correction;
  correction.name = "basis-rotation";
  ExpectFollows(
      options, [] { return RotatedRule(0.9, 0.95, 2); }, Square, 1e-5, correction);
}

TEST(Soap, IsAdamWithoutItsFirstUpdateOnVectors) {
  const auto make = [] {
    const auto s = StateOf();
    return Rule([s](const StageTensor&, int n, const Tensor& g, Tensor& x) {
      s->a.resize(x.size());
      s->b.resize(x.size());
      if (n == 1) return;
      const double step = kLr * std::sqrt(1 - std::pow(0.95, n - 1)) / (1 - std::pow(0.95, n - 1));
      for (size_t i = 0; i < x.size(); ++i) {
        s->a[i] = 0.95 * s->a[i] + 0.05 * g[i];
        s->b[i] = 0.95 * s->b[i] + 0.05 * g[i] * g[i];
        x[i] -= step * s->a[i] / (std::sqrt(s->b[i]) + 1e-8);
      }
    });
  };
  ExpectFollows(
      Named("soap"), make,
      [](const StageTensor& tensor) { return tensor.role == TensorRole::kVector; }, 1e-6);
}

}  // namespace
}  // namespace pipelag
