#include "runtime/device/bodies.h"

namespace pipelag {
namespace {

/// Whatever `enqueue` throws, the stream is no longer captured afterwards.
DeviceGraph Capture(ComputeDevice& device, Stream stream, const std::function<void()>& enqueue) {
  device.BeginCapture(stream);
  try {
    enqueue();
  } catch (...) {
    device.DropCapture(stream);
    throw;
  }
  return device.EndCapture(stream);
}

}  // namespace

Bodies::Key Bodies::KeyOf(const ComputeTask& task) {
  return {.kind = task.action.kind,
          .stage = task.action.stage,
          .activation = task.activation,
          .kept = task.kept,
          .weights = task.weights,
          .gradients = task.gradients,
          .input = task.input,
          .output = task.output};
}

Bodies::~Bodies() {
  for (const auto& [key, graph] : graphs_) device_.FreeGraph(graph);
}

void Bodies::Run(const Key& key, const std::function<void()>& enqueue) {
  auto at = graphs_.find(key);
  if (at == graphs_.end()) {
    if (graphs_.size() >= kMost) return enqueue();
    at = graphs_.emplace(key, Capture(device_, stream_, enqueue)).first;
  }
  device_.Replay(stream_, at->second);
}

}  // namespace pipelag
