#include "runtime/network/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <bit>
#include <memory>

#include "models/error.h"

namespace pipelag {

static_assert(std::endian::native == std::endian::little,
              "weights are hashed as they lie in memory");

std::string WeightsSha256(const std::vector<StageWeights>& stages) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  CHECK(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  int expected_index = 0;
  for (const StageWeights& stage : stages) {
    for (const StageTensor& tensor : stage.layout->tensors()) {
      CHECK(tensor.global_index == expected_index++);
      CHECK(EVP_DigestUpdate(context.get(), stage.weights + tensor.offset,
                             static_cast<size_t>(tensor.elements()) * sizeof(float)) == 1);
    }
  }
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  CHECK(EVP_DigestFinal_ex(context.get(), bytes, &length) == 1);
  return fmt::format("{:02x}", fmt::join(bytes, bytes + length, ""));
}

}  // namespace pipelag
