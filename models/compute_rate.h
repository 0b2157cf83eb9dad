// How fast a device computes, read from text. Implemented beside the other units.
#pragma once

#include <cstdint>
#include <string_view>

namespace pipelag {

/// Arithmetic of a device at its best.
struct ComputeRate {
  int64_t flops_per_second = 0;
  bool operator==(const ComputeRate&) const = default;
};

/// "400TFLOP/s", "1.5PFLOP/s"; from MFLOP/s up. Zero is an Error, as is whatever else is no rate:
/// one sentence that quotes `text`.
ComputeRate ParseComputeRate(std::string_view text);

}  // namespace pipelag
