#include "models/error.h"

#include <fmt/format.h>

namespace pipelag {

void CheckFailed(const char* file, int line, const char* condition) {
  throw InternalError(fmt::format("{}:{}: check failed: {}", file, line, condition));
}

}  // namespace pipelag
