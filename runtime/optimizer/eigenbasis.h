// An orthonormal basis for each side of a matrix, in which running means of g gᵀ and gᵀ g are
// nearly diagonal. Knows matrices, not what is done in their bases.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pipelag {

/// Eigenvectors of a symmetric n × n matrix, in double: `matrix` is destroyed, row k of `vectors`
/// is that of the k-th greatest eigenvalue. Householder's reduction, then QL with implicit shifts
/// (EISPACK tred2, tql2; Bowdler, Martin, Reinsch, Wilkinson, 1968). `scratch`: 2 n.
void SymmetricEigenvectors(int64_t n, double* matrix, double* vectors, double* scratch);

/// Replaces the columns of an n × n matrix by an orthonormal basis whose first k vectors span its
/// first k columns (Q of its QR, by Householder's reflections: orthonormal whatever the rank).
/// `scratch`: n · n + 2 n.
void OrthonormaliseColumns(int64_t n, double* matrix, double* scratch);

/// Scratch shared by all tensors of a stage, so that nothing is allocated later.
struct BasisScratch {
  explicit BasisScratch(int64_t largest_side, int64_t largest_tensor);

  std::vector<double> square;
  std::vector<double> second_square;
  std::vector<double> lines;
  std::vector<float> product;
  std::vector<int64_t> order;
};

/// Both sides of one (rows, cols) tensor. A side above kLargestSide keeps its standard basis (Vyas
/// et al., arXiv 2409.11321, section 6).
class MatrixBasis {
 public:
  static constexpr int64_t kLargestSide = 10000;

  MatrixBasis(int64_t rows, int64_t cols);

  /// L ← β L + (1 − β) g gᵀ, R ← β R + (1 − β) gᵀ g.
  void Observe(const float* gradient, float beta);
  /// Bases from the eigenvectors of L and R.
  void Start(BasisScratch& scratch);
  /// One power iteration: with the columns of Q sorted by their diagonal of Qᵀ L Q, greatest first,
  /// Q ← Q of QR(L Q). Rows and columns of `squares` (rows, cols) move with their basis vectors.
  /// Nothing happens if L or R is not finite.
  void Refresh(float* squares, BasisScratch& scratch);
  /// out = QLᵀ x QR.
  void Rotate(const float* x, float* out, BasisScratch& scratch) const;
  /// out = QL x QRᵀ.
  void RotateBack(const float* x, float* out, BasisScratch& scratch) const;

  /// What is kept, by name; empty where a side is not rotated.
  std::vector<std::pair<const char*, std::span<float>>> State() {
    return {{"left_mean", left_.mean},
            {"left_basis", left_.basis},
            {"right_mean", right_.mean},
            {"right_basis", right_.basis}};
  }
  int64_t state_floats() const {
    return static_cast<int64_t>(left_.mean.size() + left_.basis.size() + right_.mean.size() +
                                right_.basis.size());
  }

 private:
  struct Side {
    explicit Side(int64_t length);
    bool rotated() const { return !mean.empty(); }

    int64_t n;
    std::vector<float> mean;   ///< L or R; empty where the side is not rotated
    std::vector<float> basis;  ///< columns are vectors
  };

  static void StartSide(Side& side, BasisScratch& scratch);
  static bool RefreshSide(Side& side, BasisScratch& scratch);

  int64_t rows_;
  int64_t cols_;
  Side left_;
  Side right_;
};

}  // namespace pipelag
