// The launches of buffers.cuh's kernels, and the plan of the squared norms.
#include <algorithm>

#include "runtime/cuda/kernels/buffers.cuh"
#include "runtime/cuda/kernels/buffers.h"

namespace pipelag::cuda {
namespace {

template <class... Parameters, class... Arguments>
void LaunchOver(Stream stream, int64_t elements, void (*kernel)(Parameters...),
                const Arguments&... arguments) {
  Launch(stream, {Blocks(elements, kBufferThreads * kBufferWidth)}, kBufferThreads, 0, kernel,
         elements, arguments...);
}

}  // namespace

void ConvertToBfloat16(Stream stream, int64_t elements, const float* from, Bfloat16* to) {
  LaunchOver(stream, elements, ConvertKernel, from, to);
}

void AddBuffer(Stream stream, int64_t elements, const float* summand, float* sum) {
  LaunchOver(stream, elements, AddBufferKernel, summand, sum);
}

NormPlan PlanNorms(std::span<const TensorSpan> tensors) {
  NormPlan plan;
  for (const TensorSpan& tensor : tensors) {
    plan.first_pieces.push_back(static_cast<int64_t>(plan.pieces.size()));
    for (int64_t done = 0; done < tensor.elements; done += kNormPiece) {
      plan.pieces.push_back({tensor.offset + done, std::min(kNormPiece, tensor.elements - done)});
    }
  }
  plan.first_pieces.push_back(static_cast<int64_t>(plan.pieces.size()));
  return plan;
}

void SquaredNorms(Stream stream, int64_t tensors, int64_t pieces_count, const TensorSpan* pieces,
                  const int64_t* first_pieces, const float* values, double* sums, double* norms) {
  Launch(stream, {pieces_count}, kBufferThreads, 0, SquarePiecesKernel<ListedPieces>,
         ListedPieces{pieces}, values, sums);
  Launch(stream, {tensors}, kWarp, 0, AddPiecesKernel, first_pieces, int64_t{0}, sums, norms);
}

int64_t NormPieces(int64_t elements) { return Blocks(elements, kNormPiece); }

void SquaredNorm(Stream stream, int64_t elements, const float* values, double* sums, double* norm) {
  const int64_t pieces = NormPieces(elements);
  Launch(stream, {pieces}, kBufferThreads, 0, SquarePiecesKernel<PiecesOfOne>,
         PiecesOfOne{elements}, values, sums);
  Launch(stream, {1}, kWarp, 0, AddPiecesKernel, nullptr, pieces, sums, norm);
}

void ClipFactor(Stream stream, int64_t count, const double* squared_norms, double max_norm,
                float* factor) {
  CHECK(max_norm > 0);
  Launch(stream, {1}, kWarp, 0, ClipFactorKernel, count, squared_norms, max_norm, factor);
}

}  // namespace pipelag::cuda
