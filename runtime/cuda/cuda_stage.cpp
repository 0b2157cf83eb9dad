#include "runtime/cuda/cuda_stage.h"

#include "runtime/cuda/cublas_products.h"
#include "runtime/cuda/stage/stage.h"

namespace pipelag::cuda {

std::unique_ptr<DeviceStage> MakeCudaStage(const DeviceStageOptions& options) {
  return MakeStage(options, MakeCublasProducts());
}

}  // namespace pipelag::cuda
