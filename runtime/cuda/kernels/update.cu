// The kernels of update.h: a block to each chunk, a thread to each element.
#include "runtime/cuda/kernels/exact.cuh"
#include "runtime/cuda/kernels/update.h"
#include "runtime/cuda/launch.h"

namespace pipelag::cuda {
namespace {

constexpr int kThreads = 256;

/// old · mean + (1 − old) · value.
__device__ __forceinline__ Exact Mix(float old, float* mean, Exact value) {
  const Exact mixed = Exact{old} * Exact{*mean} + (Exact{1} - Exact{old}) * value;
  *mean = mixed.value;
  return mixed;
}

__device__ __forceinline__ Exact Displacement(const SgdStep& step, int64_t i, Exact gradient) {
  const Exact g = Exact{step.weight} * gradient;
  const Exact buffer = Exact{step.momentum} * Exact{step.buffer[i]} + g;
  step.buffer[i] = buffer.value;
  return Exact{step.rate} * (step.nesterov ? Exact{step.momentum} * buffer + g : buffer);
}

__device__ __forceinline__ Exact Displacement(const AdamWStep& step, int64_t i, Exact g) {
  const Exact m = Mix(step.beta1, step.first + i, g);
  const Exact v = Mix(step.beta2, step.second + i, g * g);
  return Exact{step.step} * m / (SquareRoot(v) * Exact{step.inverse_root} + Exact{step.epsilon});
}

__device__ __forceinline__ Exact Displacement(const LionStep& step, int64_t i, Exact g) {
  const Exact direction =
      Exact{step.beta1} * Exact{step.mean[i]} + (Exact{1} - Exact{step.beta1}) * g;
  Mix(step.beta2, step.mean + i, g);
  const float up = direction.value > 0 ? step.rate : 0.0f;
  return {direction.value < 0 ? -step.rate : up};
}

__device__ __forceinline__ Exact Displacement(const AdanStep& step, int64_t i, Exact g) {
  const Exact d = g - (step.begins ? g : Exact{step.previous[i]});
  const Exact ahead = g + Exact{step.beta2} * d;
  step.previous[i] = g.value;
  const Exact mean = Mix(step.beta1, step.mean + i, g);
  const Exact difference = Mix(step.beta2, step.difference + i, d);
  const Exact square = Mix(step.beta3, step.square + i, ahead * ahead);
  return (Exact{step.of_mean} * mean + Exact{step.of_difference} * difference) /
         (SquareRoot(square) * Exact{step.inverse_root} + Exact{step.epsilon});
}

__device__ __forceinline__ Exact Displacement(const NAdamStep& step, int64_t i, Exact g) {
  const Exact m = Mix(step.beta1, step.first + i, g);
  const Exact v = Mix(step.beta2, step.second + i, g * g);
  return (Exact{step.of_gradient} * g + Exact{step.of_mean} * m) /
         (SquareRoot(v) * Exact{step.inverse_root} + Exact{step.epsilon});
}

template <class T>
__device__ __forceinline__ Exact Displacement(const DirectionStep<T>& step, int64_t i,
                                              Exact /*g*/) {
  return Exact{ToFloat(step.direction[i - step.first])} * Exact{step.scale};
}

/// Clipped, and carried to the newest weights where the correction does that.
__device__ __forceinline__ Exact CorrectedGradient(const UpdateBuffers& buffers,
                                                   const CorrectionStep& correction, int64_t at,
                                                   int64_t i) {
  using Kind = CorrectionStep::Kind;
  const Exact factor = {buffers.factor == nullptr ? 1.0f : *buffers.factor};
  const Exact g = Exact{buffers.gradients[at]} * factor;
  if (correction.kind != Kind::kDcAsgd && correction.kind != Kind::kDcAsgdAdaptive) return g;
  Exact strength = {correction.weight};
  if (correction.kind == Kind::kDcAsgdAdaptive) {
    const Exact square = Mix(correction.old, correction.state + i, g * g);
    strength = strength / SquareRoot(square + Exact{correction.epsilon});
  }
  return g + strength * (g * g) * (Exact{buffers.source[at]} - Exact{buffers.taken_at[at]});
}

__device__ __forceinline__ Exact FedBack(const CorrectionStep& correction, int64_t i, Exact u,
                                         Exact weights) {
  using Previous = CorrectionStep::Previous;
  const Exact whole = u + Exact{correction.decayed} * weights;
  Exact previous = {correction.state[i]};
  if (correction.previous == Previous::kRepeat) previous = whole;
  if (correction.previous == Previous::kRescale) previous = previous * Exact{correction.rescale};
  correction.state[i] = whole.value;
  return u + Exact{correction.weight} * (whole - previous);
}

template <class Step>
__global__ void UpdateKernel(const UpdateChunk* chunks, UpdateBuffers buffers,
                             CorrectionStep correction, Step step) {
  using Kind = CorrectionStep::Kind;
  const UpdateChunk chunk = chunks[blockIdx.x];
  for (int64_t k = threadIdx.x; k < chunk.count; k += kThreads) {
    const int64_t at = chunk.offset + k;
    const int64_t i = chunk.state + k;
    const Exact source = {buffers.source[at]};
    Exact u = Displacement(step, i, CorrectedGradient(buffers, correction, at, i));
    if (correction.kind == Kind::kErrorFeedback) u = FedBack(correction, i, u, source);
    Exact target;
    if (correction.kind == Kind::kWeightPrediction) {
      const Exact before = correction.begins ? source : Exact{correction.state[i]};
      const Exact after = before * Exact{buffers.kept} - u;
      correction.state[i] = after.value;
      target = after + Exact{correction.weight} * (after - before);
    } else {
      target = source * Exact{buffers.kept} - u;
    }
    buffers.target[at] = target.value;
    if (buffers.copy != nullptr) buffers.copy[at] = ToBfloat16(target.value);
    buffers.gradients[at] = 0;
  }
}

__global__ void MomentumKernel(const UpdateChunk* chunks, UpdateBuffers buffers,
                               CorrectionStep correction, MomentumStep step, float* direction) {
  const UpdateChunk chunk = chunks[blockIdx.x];
  for (int64_t k = threadIdx.x; k < chunk.count; k += kThreads) {
    const int64_t i = chunk.state + k;
    const Exact g = CorrectedGradient(buffers, correction, chunk.offset + k, i);
    const Exact buffer = Exact{step.momentum} * Exact{step.buffer[i]} + g;
    step.buffer[i] = buffer.value;
    direction[i - step.first] = (step.nesterov ? g + Exact{step.momentum} * buffer : buffer).value;
  }
}

template <class T>
__global__ void NormaliseKernel(int64_t elements, const float* values, const double* squared_norm,
                                double epsilon, T* x) {
  const auto inverse = static_cast<float>(1 / (sqrt(*squared_norm) + epsilon));
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += stride) {
    x[i] = FromFloat<T>((Exact{values[i]} * Exact{inverse}).value);
  }
}

}  // namespace

template <class Step>
void UpdateElements(Stream stream, const UpdateChunk* chunks, int64_t count,
                    const UpdateBuffers& buffers, const CorrectionStep& correction,
                    const Step& step) {
  Launch(stream, {.x = count}, kThreads, 0, &UpdateKernel<Step>, chunks, buffers, correction, step);
}

void TakeMomentum(Stream stream, const UpdateChunk* chunks, int64_t count,
                  const UpdateBuffers& buffers, const CorrectionStep& correction,
                  const MomentumStep& step, float* direction) {
  Launch(stream, {.x = count}, kThreads, 0, &MomentumKernel, chunks, buffers, correction, step,
         direction);
}

template <class T>
void Normalise(Stream stream, int64_t elements, const float* values, const double* squared_norm,
               double epsilon, T* x) {
  Launch(stream, {.x = Blocks(elements, kUpdateChunk)}, kThreads, 0, &NormaliseKernel<T>, elements,
         values, squared_norm, epsilon, x);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_UPDATE(Step)                                                              \
  template void UpdateElements(Stream, const UpdateChunk*, int64_t, const UpdateBuffers&, \
                               const CorrectionStep&, const Step&);

PIPELAG_UPDATE(SgdStep)
PIPELAG_UPDATE(AdamWStep)
PIPELAG_UPDATE(LionStep)
PIPELAG_UPDATE(AdanStep)
PIPELAG_UPDATE(NAdamStep)
PIPELAG_UPDATE(DirectionStep<float>)
PIPELAG_UPDATE(DirectionStep<Bfloat16>)

#undef PIPELAG_UPDATE
// NOLINTEND(bugprone-macro-parentheses)

template void Normalise(Stream, int64_t, const float*, const double*, double, float*);
template void Normalise(Stream, int64_t, const float*, const double*, double, Bfloat16*);

}  // namespace pipelag::cuda
