// Passes of stages that are made again and again with the same pointers, as graphs of the device:
// one launch instead of hundreds. Knows no networks.
#pragma once

#include <compare>
#include <functional>
#include <map>

#include "runtime/compute.h"
#include "runtime/device/device.h"

namespace pipelag {

/// Of one stream, whose device and work outlive it. Used by one thread.
class Bodies {
 public:
  /// What a pass is made of; tokens go with the activation slot.
  struct Key {
    ActionKind kind = ActionKind::kForward;
    int stage = 0;
    int activation = -1;
    int kept = -1;
    int weights = -1;
    int gradients = -1;
    const std::byte* input = nullptr;
    const std::byte* output = nullptr;

    auto operator<=>(const Key&) const = default;
  };
  static Key KeyOf(const ComputeTask& task);

  /// The most graphs of a rank: each holds the arguments of some hundreds of kernels. Further
  /// bodies are launched kernel by kernel.
  static constexpr size_t kMost = 256;

  Bodies(ComputeDevice& device, Stream stream) : device_(device), stream_(stream) {}
  ~Bodies();
  Bodies(const Bodies&) = delete;
  Bodies& operator=(const Bodies&) = delete;

  /// Enqueues what `enqueue` does, which is the same for the same key: calls it when a key is new,
  /// to capture it.
  void Run(const Key& key, const std::function<void()>& enqueue);

 private:
  ComputeDevice& device_;
  Stream stream_;
  std::map<Key, DeviceGraph> graphs_;
};

}  // namespace pipelag
