#include "runtime/network/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <bit>
#include <memory>

#include "models/error.h"

namespace pipelag {

static_assert(std::endian::native == std::endian::little,
              "weights are hashed as they lie in memory");

namespace {

class Digest {
 public:
  Digest() { CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1); }
  void Add(const void* bytes, size_t size) {
    CHECK(EVP_DigestUpdate(context_.get(), bytes, size) == 1);
  }
  std::string Finish() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    CHECK(EVP_DigestFinal_ex(context_.get(), bytes, &length) == 1);
    return fmt::format("{:02x}", fmt::join(bytes, bytes + length, ""));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(),
                                                                   &EVP_MD_CTX_free};
};

}  // namespace

std::string WeightsSha256(const std::vector<StageWeights>& stages) {
  Digest digest;
  int expected_index = 0;
  for (const StageWeights& stage : stages) {
    for (const StageTensor& tensor : stage.layout->tensors()) {
      CHECK(tensor.global_index == expected_index++);
      digest.Add(stage.weights + tensor.offset,
                 static_cast<size_t>(tensor.elements()) * sizeof(float));
    }
  }
  return digest.Finish();
}

std::string Sha256(std::string_view bytes) {
  Digest digest;
  digest.Add(bytes.data(), bytes.size());
  return digest.Finish();
}

}  // namespace pipelag
