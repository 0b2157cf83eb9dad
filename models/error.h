// The two ways in which anything in this project fails: `Error` for bad input or a bad environment
// (what the user can mend), CHECK for our own bugs. Knows nothing of printing or exit codes.
#pragma once

#include <stdexcept>
#include <string>

namespace pipelag {

/// Bad input or environment. The message is one clear sentence that names the file and the place
/// in it (JSON path, line, rank, flag). Caught once, in main; exit code 2.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

/// A broken promise of our own. Caught once, in main; exit code 3.
class InternalError : public std::logic_error {
 public:
  explicit InternalError(const std::string& message) : std::logic_error(message) {}
};

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace pipelag

/// Always on. A failure is a bug of this project, never of its input.
#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      ::pipelag::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                         \
  } while (false)
