// The name of a queue of work on a device, for interfaces that know no CUDA.
#pragma once

namespace pipelag {

/// A cudaStream_t. Work of one stream runs in the order in which it was enqueued.
using Stream = void*;

}  // namespace pipelag
