// Muon on a device: one matrix after the other, its Newton-Schulz steps as products.
#include "runtime/optimizer/muon.h"

#include <algorithm>

#include "runtime/cuda/kernels/buffers.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/stage/places.h"
#include "runtime/cuda/stage/rules.h"

namespace pipelag::cuda {
namespace {

template <class T>
class MuonRule : public UpdateRule {
 public:
  MuonRule(const OptimizerOptions& options, const StageLayout& layout, const UpdateGroup& group,
           Products& products);

  std::vector<std::string_view> Arrays() const override { return {"momentum_buffer"}; }
  size_t table_bytes() const override { return tables_.size(); }
  size_t scratch_bytes() const override { return scratch_.size(); }
  void Begin(Stream stream, std::byte* tables, std::byte* scratch) override;
  void Update(Stream stream, const GroupUpdate& update, const std::vector<float*>& state) override;

 private:
  struct Matrix {
    int rows = 0;
    int cols = 0;
    NormPlan norm;      ///< of the matrix alone
    size_t pieces = 0;  ///< the plan's lists on the device
    size_t first_pieces = 0;
  };
  struct Square {
    T* square;
    T* polynomial;
  };

  template <class Value>
  Value* Scratch(size_t offset) const {
    return reinterpret_cast<Value*>(scratch_at_ + offset);
  }
  /// Brings x near orthogonality by way of `next`; returns where the result is.
  const T* Orthogonalise(Stream stream, const Matrix& matrix, T* x, T* next, Square squares) const;

  MuonSettings settings_;
  const UpdateGroup& group_;
  Products& products_;
  std::vector<Matrix> matrices_;
  BytePlaces tables_;
  BytePlaces scratch_;
  size_t direction_ = 0;
  size_t x_ = 0;
  size_t next_ = 0;
  size_t square_ = 0;
  size_t polynomial_ = 0;
  size_t sums_ = 0;
  size_t norm_ = 0;
  std::byte* tables_at_ = nullptr;
  std::byte* scratch_at_ = nullptr;
};

template <class T>
MuonRule<T>::MuonRule(const OptimizerOptions& options, const StageLayout& layout,
                      const UpdateGroup& group, Products& products)
    : settings_(options), group_(group), products_(products) {
  size_t most = 0;
  size_t widest = 0;
  size_t most_pieces = 0;
  for (const int tensor : group.tensors) {
    const StageTensor& place = layout.tensors()[static_cast<size_t>(tensor)];
    const TensorSpan whole = {.offset = 0, .elements = place.elements()};
    Matrix& matrix = matrices_.emplace_back();
    matrix.rows = place.rows;
    matrix.cols = place.cols;
    matrix.norm = PlanNorms({&whole, 1});
    matrix.pieces = tables_.Take(matrix.norm.pieces.size() * sizeof(TensorSpan));
    matrix.first_pieces = tables_.Take(matrix.norm.first_pieces.size() * sizeof(int64_t));
    most = std::max(most, static_cast<size_t>(place.elements()));
    const auto shorter = static_cast<size_t>(std::min(place.rows, place.cols));
    widest = std::max(widest, shorter * shorter);
    most_pieces = std::max(most_pieces, matrix.norm.pieces.size());
  }
  direction_ = scratch_.Take(most * sizeof(float));
  x_ = scratch_.Take(most * sizeof(T));
  next_ = scratch_.Take(most * sizeof(T));
  square_ = scratch_.Take(widest * sizeof(T));
  polynomial_ = scratch_.Take(widest * sizeof(T));
  sums_ = scratch_.Take(most_pieces * sizeof(double));
  norm_ = scratch_.Take(sizeof(double));
}

template <class T>
void MuonRule<T>::Begin(Stream stream, std::byte* tables, std::byte* scratch) {
  tables_at_ = tables;
  scratch_at_ = scratch;
  for (const Matrix& matrix : matrices_) {
    const NormPlan& norm = matrix.norm;
    Copy(stream, norm.pieces.size() * sizeof(TensorSpan), norm.pieces.data(),
         tables + matrix.pieces);
    Copy(stream, norm.first_pieces.size() * sizeof(int64_t), norm.first_pieces.data(),
         tables + matrix.first_pieces);
  }
}

template <class T>
const T* MuonRule<T>::Orthogonalise(Stream stream, const Matrix& matrix, T* x, T* next,
                                    Square squares) const {
  const int64_t rows = matrix.rows;
  const int64_t cols = matrix.cols;
  const int64_t shorter = std::min(rows, cols);
  const bool wide = rows <= cols;
  for (int step = 0; step < NewtonSchulzStep::kSteps; ++step) {
    const Product<T, T> square = {.m = shorter,
                                  .n = shorter,
                                  .k = std::max(rows, cols),
                                  .transpose_a = wide ? Transpose::kNo : Transpose::kYes,
                                  .transpose_b = wide ? Transpose::kYes : Transpose::kNo,
                                  .a = x,
                                  .lda = cols,
                                  .b = x,
                                  .ldb = cols,
                                  .d = squares.square,
                                  .ldd = shorter};
    products_.Multiply(stream, square);
    const Product<T, T> polynomial = {.m = shorter,
                                      .n = shorter,
                                      .k = shorter,
                                      .a = squares.square,
                                      .lda = shorter,
                                      .b = squares.square,
                                      .ldb = shorter,
                                      .alpha = NewtonSchulzStep::kC,
                                      .beta = NewtonSchulzStep::kB,
                                      .c = squares.square,
                                      .d = squares.polynomial,
                                      .ldd = shorter};
    products_.Multiply(stream, polynomial);
    const Product<T, T> apply = {.m = rows,
                                 .n = cols,
                                 .k = shorter,
                                 .a = wide ? squares.polynomial : x,
                                 .lda = wide ? shorter : cols,
                                 .b = wide ? x : squares.polynomial,
                                 .ldb = wide ? cols : shorter,
                                 .beta = NewtonSchulzStep::kA,
                                 .c = x,
                                 .d = next,
                                 .ldd = cols};
    products_.Multiply(stream, apply);
    std::swap(x, next);
  }
  return x;
}

template <class T>
void MuonRule<T>::Update(Stream stream, const GroupUpdate& update,
                         const std::vector<float*>& state) {
  auto* direction = Scratch<float>(direction_);
  auto* norm = Scratch<double>(norm_);
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Matrix& matrix = matrices_[i];
    const UpdateChunk* chunks = update.chunks + group_.first_chunks[i];
    const int64_t count = group_.first_chunks[i + 1] - group_.first_chunks[i];
    const int64_t first = group_.state_offsets[i];
    TakeMomentum(stream, chunks, count, update.buffers, update.correction,
                 {.buffer = state[0],
                  .first = first,
                  .momentum = settings_.momentum,
                  .nesterov = settings_.nesterov},
                 direction);
    SquaredNorms(stream, 1, static_cast<int64_t>(matrix.norm.pieces.size()),
                 reinterpret_cast<const TensorSpan*>(tables_at_ + matrix.pieces),
                 reinterpret_cast<const int64_t*>(tables_at_ + matrix.first_pieces), direction,
                 Scratch<double>(sums_), norm);
    const int64_t elements = int64_t{matrix.rows} * matrix.cols;
    Normalise(stream, elements, direction, norm, NewtonSchulzStep::kNormEpsilon, Scratch<T>(x_));
    const T* orthogonal = Orthogonalise(stream, matrix, Scratch<T>(x_), Scratch<T>(next_),
                                        {Scratch<T>(square_), Scratch<T>(polynomial_)});
    // What DC-ASGD does to gradients is done.
    CorrectionStep correction = update.correction;
    if (correction.kind == CorrectionStep::Kind::kDcAsgd ||
        correction.kind == CorrectionStep::Kind::kDcAsgdAdaptive) {
      correction.kind = CorrectionStep::Kind::kNone;
    }
    UpdateElements(
        stream, chunks, count, update.buffers, correction,
        DirectionStep<T>{.direction = orthogonal,
                         .first = first,
                         .scale = settings_.Scale(matrix.rows, matrix.cols, update.rate)});
  }
}

}  // namespace

template <class T>
std::unique_ptr<UpdateRule> MakeMuonRule(const OptimizerOptions& options, const StageLayout& layout,
                                         const UpdateGroup& group, Products& products) {
  return std::make_unique<MuonRule<T>>(options, layout, group, products);
}

template std::unique_ptr<UpdateRule> MakeMuonRule<float>(const OptimizerOptions&,
                                                         const StageLayout&, const UpdateGroup&,
                                                         Products&);
template std::unique_ptr<UpdateRule> MakeMuonRule<Bfloat16>(const OptimizerOptions&,
                                                            const StageLayout&, const UpdateGroup&,
                                                            Products&);

}  // namespace pipelag::cuda
