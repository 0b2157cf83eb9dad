// Cases of buffers.h's kernels.
#pragma once

#include <algorithm>
#include <cmath>

#include "runtime/cuda/kernels/buffers.h"
#include "runtime/optimizer/norm.h"
#include "tests/runtime/cuda/kernel_case.h"
#include "tests/runtime/cuda/tolerance.h"

namespace pipelag::cuda {

inline KernelCase ConvertCase(KernelMemory& memory, bool compared, int64_t elements) {
  KernelCase c(memory, compared);
  const std::vector<float> values = Normal(elements, 1);
  const float* from = c.Input<float>(values);
  Bfloat16* to = c.Result<Bfloat16>("bf16", elements, c.Wide(Rounded<Bfloat16>(values)), 0);
  c.moved_bytes = static_cast<double>(elements) * 6;
  c.launch = [=] { ConvertToBfloat16(nullptr, elements, from, to); };
  return c;
}

inline KernelCase AddBufferCase(KernelMemory& memory, bool compared, int64_t elements) {
  KernelCase c(memory, compared);
  const std::vector<float> before = Normal(elements, 1);
  const std::vector<float> values = Normal(elements, 2);
  std::vector<float> expected = before;
  for (size_t i = 0; i < values.size(); ++i) expected[i] += values[i];
  const float* summand = c.Input<float>(values);
  float* sum = c.Changed<float>("sum", before, c.Wide(expected), 0);
  c.moved_bytes = static_cast<double>(elements) * 12;
  c.launch = [=] { AddBuffer(nullptr, elements, summand, sum); };
  return c;
}

/// Norms of tensors of these sizes, 16 elements apart as a layout has them, and the factor that
/// clips them to one.
inline KernelCase ClipCase(KernelMemory& memory, bool compared, const std::vector<int64_t>& sizes) {
  KernelCase c(memory, compared);
  std::vector<TensorSpan> tensors;
  int64_t end = 0;
  for (const int64_t size : sizes) {
    tensors.push_back({end, size});
    end += (size + 15) / 16 * 16;
  }
  std::vector<float> values = Normal(end, 1);
  std::vector<double> norms;
  for (const TensorSpan& tensor : tensors) {
    norms.push_back(pipelag::SquaredNorm(tensor.elements, values.data() + tensor.offset));
  }
  const float expected = pipelag::ClipFactor(norms, 1);
  const NormPlan plan = PlanNorms(tensors);
  const TensorSpan* pieces = c.Copied(plan.pieces);
  const int64_t* first_pieces = c.Copied(plan.first_pieces);
  auto* sums = static_cast<double*>(c.Scratch(plan.pieces.size() * sizeof(double)));
  const auto count = static_cast<int64_t>(tensors.size());
  const auto pieces_count = static_cast<int64_t>(plan.pieces.size());
  double* squared = c.Result<double>("squared norms", count, norms, 1e-14);
  float* factor = c.Result<float>("factor", 1, {static_cast<double>(expected)}, 1e-7);
  const float* gradients = c.Input<float>(values);
  c.moved_bytes = static_cast<double>(end) * 4;
  c.launch = [=] {
    SquaredNorms(nullptr, count, pieces_count, pieces, first_pieces, gradients, sums, squared);
    ClipFactor(nullptr, count, squared, 1, factor);
  };
  return c;
}

}  // namespace pipelag::cuda
