// NCCL behind the runtime's seam. Knows nothing but calls.
#pragma once

#include <memory>

#include "runtime/device/collective_library.h"

namespace pipelag::cuda {

std::unique_ptr<CollectiveLibrary> OpenNccl();

}  // namespace pipelag::cuda
