#include "tests/runtime/cuda/kernel_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "models/error.h"
#include "models/random.h"

namespace pipelag::cuda {
namespace {

template <class T>
std::vector<T> Converted(const std::vector<float>& values) {
  std::vector<T> converted(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (sizeof(T) == sizeof(double)) {
      converted[i] = static_cast<T>(values[i]);
    } else {
      converted[i] = FromFloat<T>(values[i]);
    }
  }
  return converted;
}

template <class T>
std::vector<double> NumbersIn(const std::vector<std::byte>& bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  std::vector<double> doubles;
  for (const T& number : numbers) {
    if constexpr (sizeof(T) == sizeof(double)) {
      doubles.push_back(number);
    } else {
      doubles.push_back(static_cast<double>(ToFloat(number)));
    }
  }
  return doubles;
}

}  // namespace

std::byte* KernelCase::Add(const void* before, size_t bytes) {
  Buffer buffer{memory_->Allocate(bytes), std::vector<std::byte>(bytes)};
  if (bytes > 0) std::memcpy(buffer.before.data(), before, bytes);
  buffers_.push_back(std::move(buffer));
  return buffers_.back().at.get();
}

template <class T>
T* KernelCase::Input(const std::vector<float>& values) {
  return Copied(Converted<T>(values));
}

template <class T>
void KernelCase::Expect(std::string of, std::vector<double> expected, double tolerance) {
  const Type type = sizeof(T) == 8   ? Type::kDouble
                    : sizeof(T) == 4 ? Type::kFloat
                                     : Type::kBfloat16;
  expected_.push_back({std::move(of), buffers_.size() - 1, type, std::move(expected), tolerance});
}

template <class T>
T* KernelCase::Result(std::string of, int64_t count, std::vector<double> expected,
                      double tolerance) {
  return Changed<T>(std::move(of),
                    std::vector<float>(Size(count), std::numeric_limits<float>::quiet_NaN()),
                    std::move(expected), tolerance);
}

template <class T>
T* KernelCase::Changed(std::string of, const std::vector<float>& before,
                       std::vector<double> expected, double tolerance) {
  CHECK(!compared_ || expected.size() == before.size());
  T* at = Copied(Converted<T>(before));
  Expect<T>(std::move(of), std::move(expected), tolerance);
  return at;
}

void KernelCase::Same(std::string of, const void* a, const void* b) {
  const auto find = [&](const void* at) {
    const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                    [&](const Buffer& buffer) { return buffer.at.get() == at; });
    CHECK(found != buffers_.end());
    return &*found;
  };
  pairs_.push_back({std::move(of), find(a), find(b)});
}

void KernelCase::Prepare() {
  for (const Buffer& buffer : buffers_) {
    memory_->Write(buffer.before.data(), buffer.before.size(), buffer.at.get());
  }
}

std::vector<std::byte> KernelCase::Contents(const Buffer& buffer) const {
  std::vector<std::byte> bytes(buffer.before.size());
  memory_->Read(buffer.at.get(), bytes.size(), bytes.data());
  return bytes;
}

std::vector<Deviation> KernelCase::Compare() const {
  std::vector<Deviation> deviations;
  for (const Expected& expected : expected_) {
    const std::vector<std::byte> bytes = Contents(buffers_[expected.buffer]);
    const std::vector<double> actual = expected.type == Type::kDouble  ? NumbersIn<double>(bytes)
                                       : expected.type == Type::kFloat ? NumbersIn<float>(bytes)
                                                                       : NumbersIn<Bfloat16>(bytes);
    CHECK(actual.size() == expected.values.size());
    double largest = 0;
    double error = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      largest = std::max(largest, std::fabs(expected.values[i]));
      const double difference = std::fabs(actual[i] - expected.values[i]);
      // Not a maximum, which would overlook what is not a number.
      if (!(difference <= error)) error = difference;
    }
    deviations.push_back({expected.of, largest > 0 ? error / largest : error, expected.tolerance});
  }
  for (const Pair& pair : pairs_) {
    const bool same = Contents(*pair.a) == Contents(*pair.b);
    deviations.push_back({pair.of, same ? 0.0 : 1.0, 0});
  }
  return deviations;
}

std::vector<std::byte> KernelCase::Bits() const {
  std::vector<std::byte> bits;
  for (const Expected& expected : expected_) {
    const std::vector<std::byte> bytes = Contents(buffers_[expected.buffer]);
    bits.insert(bits.end(), bytes.begin(), bytes.end());
  }
  return bits;
}

std::vector<float> Normal(int64_t count, uint64_t seed, double deviation) {
  constexpr size_t kPeriod = 65536;
  std::vector<float> values(Size(count));
  const size_t first = std::min(values.size(), kPeriod);
  for (size_t i = 0; i < first; ++i) {
    values[i] = static_cast<float>(deviation * StandardNormal(RandomBits(seed, i)));
  }
  for (size_t i = first; i < values.size(); i += kPeriod) {
    std::copy_n(values.begin(), std::min(kPeriod, values.size() - i),
                values.begin() + static_cast<int64_t>(i));
  }
  return values;
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_CASE(T)                                                                           \
  template T* KernelCase::Input<T>(const std::vector<float>&);                                    \
  template T* KernelCase::Result<T>(std::string, int64_t, std::vector<double>, double);           \
  template T* KernelCase::Changed<T>(std::string, const std::vector<float>&, std::vector<double>, \
                                     double);
// NOLINTEND(bugprone-macro-parentheses)
PIPELAG_CASE(float)
PIPELAG_CASE(Bfloat16)
template double* KernelCase::Result<double>(std::string, int64_t, std::vector<double>, double);
#undef PIPELAG_CASE

}  // namespace pipelag::cuda
