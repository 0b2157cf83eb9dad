// What a test says of an error: why something was refused.
#pragma once

#include <string>

#include "models/error.h"

namespace pipelag {

/// Of the error that `make` ends in; empty if it does not.
template <class Make>
std::string ReasonOf(Make make) {
  try {
    make();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace pipelag
