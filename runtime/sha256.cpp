#include "runtime/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "models/error.h"

namespace pipelag {

struct Sha256Sum::Context {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> evp{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

Sha256Sum::Sha256Sum() : context_(std::make_unique<Context>()) {
  CHECK(context_->evp && EVP_DigestInit_ex(context_->evp.get(), EVP_sha256(), nullptr) == 1);
}

Sha256Sum::~Sha256Sum() = default;

void Sha256Sum::Add(const void* bytes, size_t size) {
  CHECK(EVP_DigestUpdate(context_->evp.get(), bytes, size) == 1);
}

std::string Sha256Sum::Finish() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  CHECK(EVP_DigestFinal_ex(context_->evp.get(), bytes, &length) == 1);
  return fmt::format("{:02x}", fmt::join(bytes, bytes + length, ""));
}

std::string Sha256(std::string_view bytes) {
  Sha256Sum sum;
  sum.Add(bytes.data(), bytes.size());
  return sum.Finish();
}

}  // namespace pipelag
