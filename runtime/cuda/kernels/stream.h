// The handle of a queue of work on a device, for those who pass it on only.
#pragma once

namespace pipelag {

/// A cudaStream_t, which is a pointer; null is the legacy default stream.
using Stream = void*;

}  // namespace pipelag
