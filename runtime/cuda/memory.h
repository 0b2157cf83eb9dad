// Copying and clearing memory on a stream, the little of the CUDA runtime that a stage needs
// besides kernels and products. The tests have their own behind the same words.
#pragma once

#include <cstddef>

#include "runtime/cuda/kernels/stream.h"

namespace pipelag::cuda {

/// Enqueues a copy between any two of host and device. What a pinned host buffer holds is read, or
/// there, when the stream comes to it; other host memory makes the call wait.
void Copy(Stream stream, size_t bytes, const void* from, void* to);

/// Enqueues zeros.
void Clear(Stream stream, size_t bytes, void* to);

/// Until all that was enqueued is done.
void Wait(Stream stream);

}  // namespace pipelag::cuda
