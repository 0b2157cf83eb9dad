#include "runtime/optimizer/eigenbasis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/network/gemm.h"

namespace pipelag {
namespace {

/// To tridiagonal form: `d` the diagonal, `e` the subdiagonal from e[1] on, `v` the transformation.
void Tridiagonalise(int64_t n, double* v, double* d, double* e) {
  std::copy(v + (n - 1) * n, v + n * n, d);
  for (int64_t i = n - 1; i > 0; --i) {
    double scale = 0;
    double h = 0;
    for (int64_t k = 0; k < i; ++k) scale += std::fabs(d[k]);
    if (scale == 0) {
      e[i] = d[i - 1];
      for (int64_t j = 0; j < i; ++j) {
        d[j] = v[(i - 1) * n + j];
        v[i * n + j] = 0;
        v[j * n + i] = 0;
      }
    } else {
      for (int64_t k = 0; k < i; ++k) {
        d[k] /= scale;
        h += d[k] * d[k];
      }
      const double last = d[i - 1];
      const double root = last > 0 ? -std::sqrt(h) : std::sqrt(h);
      e[i] = scale * root;
      h -= last * root;
      d[i - 1] = last - root;
      std::fill(e, e + i, 0.0);
      for (int64_t j = 0; j < i; ++j) {
        const double f = d[j];
        v[j * n + i] = f;
        double g = e[j] + v[j * n + j] * f;
        for (int64_t k = j + 1; k < i; ++k) {
          g += v[k * n + j] * d[k];
          e[k] += v[k * n + j] * f;
        }
        e[j] = g;
      }
      double f = 0;
      for (int64_t j = 0; j < i; ++j) {
        e[j] /= h;
        f += e[j] * d[j];
      }
      const double half = f / (h + h);
      for (int64_t j = 0; j < i; ++j) e[j] -= half * d[j];
      for (int64_t j = 0; j < i; ++j) {
        const double dj = d[j];
        const double ej = e[j];
        for (int64_t k = j; k < i; ++k) v[k * n + j] -= dj * e[k] + ej * d[k];
        d[j] = v[(i - 1) * n + j];
        v[i * n + j] = 0;
      }
    }
    d[i] = h;
  }
  for (int64_t i = 0; i + 1 < n; ++i) {
    v[(n - 1) * n + i] = v[i * n + i];
    v[i * n + i] = 1;
    const double h = d[i + 1];
    if (h != 0) {
      for (int64_t k = 0; k <= i; ++k) d[k] = v[k * n + i + 1] / h;
      for (int64_t j = 0; j <= i; ++j) {
        double g = 0;
        for (int64_t k = 0; k <= i; ++k) g += v[k * n + i + 1] * v[k * n + j];
        for (int64_t k = 0; k <= i; ++k) v[k * n + j] -= g * d[k];
      }
    }
    for (int64_t k = 0; k <= i; ++k) v[k * n + i + 1] = 0;
  }
  for (int64_t j = 0; j < n; ++j) {
    d[j] = v[(n - 1) * n + j];
    v[(n - 1) * n + j] = 0;
  }
  v[n * n - 1] = 1;
  e[0] = 0;
}

/// Eigenvalues of the tridiagonal matrix to `d`; rows of `rows`, the transformation transposed,
/// become eigenvectors.
void Diagonalise(int64_t n, double* rows, double* d, double* e) {
  constexpr double kPrecision = 0x1p-52;
  constexpr int kMostIterations = 60;
  for (int64_t i = 1; i < n; ++i) e[i - 1] = e[i];
  e[n - 1] = 0;
  double shift = 0;
  double largest = 0;
  for (int64_t l = 0; l < n; ++l) {
    largest = std::max(largest, std::fabs(d[l]) + std::fabs(e[l]));
    int64_t m = l;
    while (m < n - 1 && std::fabs(e[m]) > kPrecision * largest) ++m;
    for (int iteration = 0; m > l && iteration < kMostIterations; ++iteration) {
      const double before = d[l];
      double p = (d[l + 1] - before) / (2 * e[l]);
      double r = std::hypot(p, 1.0);
      if (p < 0) r = -r;
      d[l] = e[l] / (p + r);
      d[l + 1] = e[l] * (p + r);
      const double next = d[l + 1];
      const double moved = before - d[l];
      for (int64_t i = l + 2; i < n; ++i) d[i] -= moved;
      shift += moved;
      p = d[m];
      double c = 1, c2 = 1, c3 = 1, s = 0, s2 = 0;
      const double off = e[l + 1];
      for (int64_t i = m - 1; i >= l; --i) {
        c3 = c2;
        c2 = c;
        s2 = s;
        const double g = c * e[i];
        const double h = c * p;
        r = std::hypot(p, e[i]);
        e[i + 1] = s * r;
        s = e[i] / r;
        c = p / r;
        p = c * d[i] - s * g;
        d[i + 1] = h + s * (c * g + s * d[i]);
        double* low = rows + i * n;
        double* high = low + n;
        for (int64_t k = 0; k < n; ++k) {
          const double x = high[k];
          high[k] = s * low[k] + c * x;
          low[k] = c * low[k] - s * x;
        }
      }
      p = -s * s2 * c3 * off * e[l] / next;
      e[l] = s * p;
      d[l] = c * p;
      if (!(std::fabs(e[l]) > kPrecision * largest)) break;
    }
    d[l] += shift;
    e[l] = 0;
  }
}

bool Finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

void SymmetricEigenvectors(int64_t n, double* matrix, double* vectors, double* scratch) {
  double* values = scratch;
  Tridiagonalise(n, matrix, values, scratch + n);
  // In rows, since QL rotates pairs of vectors.
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) vectors[j * n + i] = matrix[i * n + j];
  }
  Diagonalise(n, vectors, values, scratch + n);
  for (int64_t i = 0; i < n; ++i) {  // selection: n swaps, no allocation
    const int64_t best = std::max_element(values + i, values + n) - values;
    if (best == i) continue;
    std::swap(values[i], values[best]);
    std::swap_ranges(vectors + i * n, vectors + (i + 1) * n, vectors + best * n);
  }
}

void OrthonormaliseColumns(int64_t n, double* matrix, double* scratch) {
  double* reflections = scratch;  // row k: the k-th vector, zero before k
  double* sums = scratch + n * n;
  for (int64_t k = 0; k < n; ++k) {
    double* v = reflections + k * n;
    std::fill(v, v + n, 0.0);
    double norm = 0;
    for (int64_t i = k; i < n; ++i) {
      v[i] = matrix[i * n + k];
      norm += v[i] * v[i];
    }
    const double root = std::sqrt(norm);
    v[k] += v[k] < 0 ? -root : root;
    double square = 0;
    for (int64_t i = k; i < n; ++i) square += v[i] * v[i];
    if (square == 0) continue;
    const double unit = std::sqrt(2 / square);
    for (int64_t i = k; i < n; ++i) v[i] *= unit;
    std::fill(sums, sums + n, 0.0);
    for (int64_t i = k; i < n; ++i) {
      for (int64_t j = k; j < n; ++j) sums[j] += v[i] * matrix[i * n + j];
    }
    for (int64_t i = k; i < n; ++i) {
      for (int64_t j = k; j < n; ++j) matrix[i * n + j] -= v[i] * sums[j];
    }
  }
  std::fill(matrix, matrix + n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) matrix[i * n + i] = 1;
  for (int64_t k = n - 1; k >= 0; --k) {
    const double* v = reflections + k * n;
    std::fill(sums, sums + n, 0.0);
    for (int64_t i = k; i < n; ++i) {
      for (int64_t j = k; j < n; ++j) sums[j] += v[i] * matrix[i * n + j];
    }
    for (int64_t i = k; i < n; ++i) {
      for (int64_t j = k; j < n; ++j) matrix[i * n + j] -= v[i] * sums[j];
    }
  }
}

BasisScratch::BasisScratch(int64_t largest_side, int64_t largest_tensor) {
  const auto side = static_cast<size_t>(largest_side);
  square.resize(side * side);
  second_square.resize(side * side + 2 * side);
  lines.resize(2 * side);
  product.resize(std::max(static_cast<size_t>(largest_tensor), side * side));
  order.resize(side);
}

MatrixBasis::Side::Side(int64_t length) : n(length) {
  if (n > kLargestSide) return;
  mean.resize(static_cast<size_t>(n * n), 0.0f);
  basis = mean;
}

MatrixBasis::MatrixBasis(int64_t rows, int64_t cols)
    : rows_(rows), cols_(cols), left_(rows), right_(cols) {}

void MatrixBasis::Observe(const float* gradient, float beta) {
  if (left_.rotated()) {
    Multiply<float>(Transpose::kNo, Transpose::kYes, rows_, rows_, cols_, 1 - beta, gradient, cols_,
                    gradient, cols_, beta, left_.mean.data(), rows_);
  }
  if (right_.rotated()) {
    Multiply<float>(Transpose::kYes, Transpose::kNo, cols_, cols_, rows_, 1 - beta, gradient, cols_,
                    gradient, cols_, beta, right_.mean.data(), cols_);
  }
}

void MatrixBasis::Start(BasisScratch& scratch) {
  StartSide(left_, scratch);
  StartSide(right_, scratch);
}

void MatrixBasis::StartSide(Side& side, BasisScratch& scratch) {
  if (!side.rotated()) return;
  const int64_t n = side.n;
  std::copy(side.mean.begin(), side.mean.end(), scratch.square.begin());
  SymmetricEigenvectors(n, scratch.square.data(), scratch.second_square.data(),
                        scratch.lines.data());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      side.basis[static_cast<size_t>(i * n + j)] =
          static_cast<float>(scratch.second_square[static_cast<size_t>(j * n + i)]);
    }
  }
}

void MatrixBasis::Refresh(float* squares, BasisScratch& scratch) {
  float* moved = scratch.product.data();
  if (left_.rotated() && RefreshSide(left_, scratch)) {
    for (int64_t i = 0; i < rows_; ++i) {
      const float* from = squares + scratch.order[static_cast<size_t>(i)] * cols_;
      std::copy(from, from + cols_, moved + i * cols_);
    }
    std::copy(moved, moved + rows_ * cols_, squares);
  }
  if (right_.rotated() && RefreshSide(right_, scratch)) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < cols_; ++j) {
        moved[j] = squares[i * cols_ + scratch.order[static_cast<size_t>(j)]];
      }
      std::copy(moved, moved + cols_, squares + i * cols_);
    }
  }
}

bool MatrixBasis::RefreshSide(Side& side, BasisScratch& scratch) {
  if (!Finite(side.mean)) return false;
  const int64_t n = side.n;
  float* power = scratch.product.data();
  Multiply<float>(Transpose::kNo, Transpose::kNo, n, n, n, 1, side.mean.data(), n,
                  side.basis.data(), n, 0, power, n);
  double* diagonal = scratch.lines.data();
  std::fill(diagonal, diagonal + n, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      diagonal[j] += static_cast<double>(side.basis[static_cast<size_t>(i * n + j)]) *
                     static_cast<double>(power[i * n + j]);
    }
  }
  const auto order = scratch.order.begin();
  std::iota(order, order + n, int64_t{0});
  std::sort(order, order + n, [&](int64_t a, int64_t b) {
    return diagonal[a] != diagonal[b] ? diagonal[a] > diagonal[b] : a < b;
  });
  double* columns = scratch.square.data();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      columns[i * n + j] = static_cast<double>(power[i * n + order[j]]);
    }
  }
  OrthonormaliseColumns(n, columns, scratch.second_square.data());
  for (int64_t i = 0; i < n * n; ++i) {
    side.basis[static_cast<size_t>(i)] = static_cast<float>(columns[i]);
  }
  return true;
}

void MatrixBasis::Rotate(const float* x, float* out, BasisScratch& scratch) const {
  float* between = scratch.product.data();
  if (left_.rotated()) {
    Multiply<float>(Transpose::kYes, Transpose::kNo, rows_, cols_, rows_, 1, left_.basis.data(),
                    rows_, x, cols_, 0, between, cols_);
  } else {
    std::copy(x, x + rows_ * cols_, between);
  }
  if (right_.rotated()) {
    Multiply<float>(Transpose::kNo, Transpose::kNo, rows_, cols_, cols_, 1, between, cols_,
                    right_.basis.data(), cols_, 0, out, cols_);
  } else {
    std::copy(between, between + rows_ * cols_, out);
  }
}

void MatrixBasis::RotateBack(const float* x, float* out, BasisScratch& scratch) const {
  float* between = scratch.product.data();
  if (left_.rotated()) {
    Multiply<float>(Transpose::kNo, Transpose::kNo, rows_, cols_, rows_, 1, left_.basis.data(),
                    rows_, x, cols_, 0, between, cols_);
  } else {
    std::copy(x, x + rows_ * cols_, between);
  }
  if (right_.rotated()) {
    Multiply<float>(Transpose::kNo, Transpose::kYes, rows_, cols_, cols_, 1, between, cols_,
                    right_.basis.data(), cols_, 0, out, cols_);
  } else {
    std::copy(between, between + rows_ * cols_, out);
  }
}

}  // namespace pipelag
