// A counter-based random generator: every number is a pure function of a seed and up to three
// keys, so that two schedules, two partitions or two machines meet the same luck.
#pragma once

#include <cstdint>

namespace pipelag {

/// 64 uniform bits, a pure function of its arguments (rounds of the SplitMix64 finaliser; Steele,
/// Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
uint64_t RandomBits(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0);

/// Uniform in [0, bound), bound > 0, without modulo bias worth noticing (128-bit product).
uint64_t UniformBelow(uint64_t bits, uint64_t bound);

/// Uniform in (0, 1): never 0 or 1.
double UniformOpen(uint64_t bits);

/// Standard normal by inversion (Wichura, algorithm AS 241, 1988; relative error about 1e-16).
double StandardNormal(uint64_t bits);

/// e^x for |x| ≤ 700 from additions and multiplications alone, so that every machine agrees to the
/// last bit; libm's depends on the processor. Relative error below 1e-15.
double Exponential(double x);

}  // namespace pipelag
