// Passes over whole buffers of weights and gradients on the device: conversion, sums, squared
// norms, clipping. What holds for all kernels: embedding.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"

namespace pipelag::cuda {

/// to = from, rounded to bf16. Moves 6 bytes per element.
void ConvertToBfloat16(Stream stream, int64_t elements, const float* from, Bfloat16* to);

/// sum += summand. Moves 12 bytes per element.
void AddBuffer(Stream stream, int64_t elements, const float* summand, float* sum);

/// Where a tensor lies in a buffer.
struct TensorSpan {
  int64_t offset = 0;
  int64_t elements = 0;
};

/// How the squares of a buffer's tensors are added: pieces of tensors first, then each tensor's
/// pieces in order. Both lists are made on the host and copied to the device.
struct NormPlan {
  std::vector<TensorSpan> pieces;
  std::vector<int64_t> first_pieces;  ///< of each tensor; one more at the end
};
NormPlan PlanNorms(std::span<const TensorSpan> tensors);

/// norms[i] = Σ values² of tensor i in double, in an order that depends on the plan only. `pieces`
/// and `first_pieces` are the plan's, on the device; `sums` is scratch for as many doubles as
/// pieces. Moves 4 bytes per element.
void SquaredNorms(Stream stream, int64_t tensors, int64_t pieces_count, const TensorSpan* pieces,
                  const int64_t* first_pieces, const float* values, double* sums, double* norms);

/// The same of one tensor alone, without lists; `sums` is scratch for NormPieces doubles.
void SquaredNorm(Stream stream, int64_t elements, const float* values, double* sums, double* norm);
int64_t NormPieces(int64_t elements);

/// *factor = what brings √(Σ squared_norms) down to max_norm (> 0), 1 if it is not above: added in
/// order, as ClipFactor in runtime/optimizer/norm.h.
void ClipFactor(Stream stream, int64_t count, const double* squared_norms, double max_norm,
                float* factor);

}  // namespace pipelag::cuda
