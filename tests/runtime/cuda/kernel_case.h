// A call of one kernel on random inputs beside what the CPU's network computes from them: the same
// cases run on the emulator in the tests and on a device in tests/gpu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/kernels/bfloat16.h"

namespace pipelag::cuda {

/// Where kernels find their arguments.
class KernelMemory {
 public:
  virtual ~KernelMemory() = default;
  /// Aligned to 256 bytes.
  virtual std::shared_ptr<std::byte> Allocate(size_t bytes) = 0;
  virtual void Write(const void* from, size_t bytes, void* to) = 0;
  virtual void Read(const void* from, size_t bytes, void* to) = 0;
};

inline std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// How far a result lies from what was expected, relative to the largest number expected.
struct Deviation {
  std::string of;
  double error = 0;
  double tolerance = 0;
};

class KernelCase {
 public:
  /// Without `compared`, which large cases are, nothing is expected.
  KernelCase(KernelMemory& memory, bool compared) : memory_(&memory), compared_(compared) {}

  bool compared() const { return compared_; }

  /// What is expected, or nothing.
  std::vector<double> Wide(const std::vector<float>& values) const {
    return compared_ ? Doubles(values) : std::vector<double>();
  }

  /// Numbers that the kernel reads, rounded to T where T is Bfloat16.
  template <class T>
  T* Input(const std::vector<float>& values);

  /// Anything else that the kernel reads.
  template <class T>
  T* Copied(const std::vector<T>& values) {
    return reinterpret_cast<T*>(Add(values.data(), values.size() * sizeof(T)));
  }

  /// `count` numbers that the kernel writes, NaNs before.
  template <class T>
  T* Result(std::string of, int64_t count, std::vector<double> expected, double tolerance);
  /// Numbers that the kernel changes.
  template <class T>
  T* Changed(std::string of, const std::vector<float>& before, std::vector<double> expected,
             double tolerance);

  /// Two buffers that are to be the same to the last bit after the launch.
  void Same(std::string of, const void* a, const void* b);

  void* Scratch(size_t bytes) { return Add(std::vector<std::byte>(bytes).data(), bytes); }

  /// Enqueues the kernel.
  std::function<void()> launch;
  double moved_bytes = 0;  ///< that it must move at least
  double operations = 0;   ///< floating-point ones of its products, if it has any

  /// Fills all buffers with what they hold before the launch.
  void Prepare();
  std::vector<Deviation> Compare() const;
  /// Of all results.
  std::vector<std::byte> Bits() const;

 private:
  enum class Type { kFloat, kBfloat16, kDouble };
  struct Buffer {
    std::shared_ptr<std::byte> at;
    std::vector<std::byte> before;
  };
  struct Expected {
    std::string of;
    size_t buffer;
    Type type;
    std::vector<double> values;
    double tolerance;
  };

  struct Pair {
    std::string of;
    const Buffer* a;
    const Buffer* b;
  };

  std::byte* Add(const void* before, size_t bytes);
  template <class T>
  void Expect(std::string of, std::vector<double> expected, double tolerance);
  std::vector<std::byte> Contents(const Buffer& buffer) const;

  KernelMemory* memory_;
  bool compared_;
  std::deque<Buffer> buffers_;  ///< stay where they are
  std::vector<Expected> expected_;
  std::vector<Pair> pairs_;
};

struct NamedCase {
  std::string name;
  std::function<KernelCase(KernelMemory&)> make;
};

/// Every kernel in float and in bf16, at sizes that fit tiles and packs and at ones that do not.
std::vector<NamedCase> SmallCases();

/// The shapes of GPT-2 124M and 1.5B in bf16, for the time they take.
std::vector<NamedCase> LargeCases();

/// Normal numbers, a pure function of the arguments; the first 65,536 repeat.
std::vector<float> Normal(int64_t count, uint64_t seed, double deviation = 1);

template <class T>
std::vector<float> Rounded(std::vector<float> values) {
  for (float& value : values) value = ToFloat(FromFloat<T>(value));
  return values;
}

inline size_t Size(int64_t count) { return static_cast<size_t>(count); }

}  // namespace pipelag::cuda
