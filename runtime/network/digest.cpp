#include "runtime/network/digest.h"

#include <bit>

#include "models/error.h"
#include "runtime/sha256.h"

namespace pipelag {

static_assert(std::endian::native == std::endian::little,
              "weights are hashed as they lie in memory");

std::string WeightsSha256(const std::vector<StageWeights>& stages) {
  Sha256Sum digest;
  int expected_index = 0;
  for (const StageWeights& stage : stages) {
    for (const StageTensor& tensor : stage.layout->tensors()) {
      if (tensor.copy) continue;
      CHECK(tensor.global_index == expected_index++);
      digest.Add(stage.weights + tensor.offset,
                 static_cast<size_t>(tensor.elements()) * sizeof(float));
    }
  }
  return digest.Finish();
}

}  // namespace pipelag
