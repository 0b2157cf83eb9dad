// One update of many tensors' elements on the device, in one pass over memory: clipping, what the
// correction does to the gradient, the optimizer's displacement, what the correction does to that,
// weight decay, the new weights and their bf16 copies, gradients cleared. The formulas and the
// order of their operations are those of runtime/optimizer and runtime/correction, to the last bit
// (but for subnormal numbers, which the CPU takes for zero). What holds for all kernels:
// embedding.h.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"

namespace pipelag::cuda {

/// Neighbouring elements of one tensor, a block's work. `state`: where theirs begins in the arrays
/// of state.
struct UpdateChunk {
  int64_t offset = 0;
  int64_t state = 0;
  int64_t count = 0;
};
constexpr int64_t kUpdateChunk = 8192;

/// In the stage's layout.
struct UpdateBuffers {
  float* gradients = nullptr;
  const float* source = nullptr;
  float* target = nullptr;          ///< may be source
  Bfloat16* copy = nullptr;         ///< of target; null: none
  const float* taken_at = nullptr;  ///< may be source or target; null where it is gone
  const float* factor = nullptr;    ///< one float by which gradients are multiplied; null: 1
  float kept = 1;                   ///< 1 − rate · weight decay
};

/// A correction at one update; state arrays are indexed as the optimizer's.
struct CorrectionStep {
  enum class Kind : uint8_t {
    kNone,
    kErrorFeedback,
    kDcAsgd,
    kDcAsgdAdaptive,
    kWeightPrediction,
  } kind = Kind::kNone;
  enum class Previous : uint8_t { kAsItIs, kRepeat, kRescale } previous = Previous::kAsItIs;
  float* state = nullptr;  ///< u_prev, s, or the master weights
  float weight = 0;        ///< c, λ, or h
  float decayed = 0;       ///< error feedback: rate · decay if that is part of u
  float rescale = 1;       ///< error feedback: what brings u_prev to the current rate
  float old = 0;           ///< DC-ASGD: of s
  float epsilon = 0;       ///< DC-ASGD: added to s
  bool begins = false;     ///< weight prediction: the master is the source still
};

struct SgdStep {
  float* buffer;
  float momentum;
  float weight;
  float rate;
  bool nesterov;
};
struct AdamWStep {
  float* first;
  float* second;
  float beta1;
  float beta2;
  float step;  ///< rate / (1 − β1^n)
  float inverse_root;
  float epsilon;
};
struct LionStep {
  float* mean;
  float beta1;
  float beta2;
  float rate;
};
struct AdanStep {
  float* mean;
  float* difference;
  float* square;
  float* previous;
  float beta1;
  float beta2;
  float beta3;
  float of_mean;
  float of_difference;
  float inverse_root;
  float epsilon;
  bool begins;  ///< there is no previous gradient
};
struct NAdamStep {
  float* first;
  float* second;
  float beta1;
  float beta2;
  float of_gradient;
  float of_mean;
  float inverse_root;
  float epsilon;
};
/// u = scale · direction. `direction` holds one tensor, alone in its chunks; `first` is its state's
/// beginning.
template <class T>
struct DirectionStep {
  const T* direction;
  int64_t first;
  float scale;
};

/// Step: one of the above. Moves, per element, 4 bytes for each of gradient read and cleared,
/// source, target, and each array of state read or written.
template <class Step>
void UpdateElements(Stream stream, const UpdateChunk* chunks, int64_t count,
                    const UpdateBuffers& buffers, const CorrectionStep& correction,
                    const Step& step);

/// Muon's b ← μ b + g, direction = g + μ b, or b without Nesterov's form, of one tensor; its
/// elements of `direction` begin at 0. Gradients are clipped and corrected as above, and left as
/// they are.
struct MomentumStep {
  float* buffer;
  int64_t first;  ///< of the tensor's state
  float momentum;
  bool nesterov;
};
void TakeMomentum(Stream stream, const UpdateChunk* chunks, int64_t count,
                  const UpdateBuffers& buffers, const CorrectionStep& correction,
                  const MomentumStep& step, float* direction);

/// x = values / (√*squared_norm + epsilon), rounded to T.
template <class T>
void Normalise(Stream stream, int64_t elements, const float* values, const double* squared_norm,
               double epsilon, T* x);

}  // namespace pipelag::cuda
