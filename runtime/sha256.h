// SHA-256 of bytes, at once or piece by piece. Knows nothing of what they mean.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace pipelag {

class Sha256Sum {
 public:
  Sha256Sum();
  ~Sha256Sum();
  Sha256Sum(const Sha256Sum&) = delete;
  Sha256Sum& operator=(const Sha256Sum&) = delete;
  void Add(const void* bytes, size_t size);
  /// 64 lower-case hexadecimal digits; once, at the end.
  std::string Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256(std::string_view bytes);

}  // namespace pipelag
