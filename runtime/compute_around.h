// A Compute around another, for whoever changes only a part of what it does.
#pragma once

#include "runtime/compute.h"

namespace pipelag {

/// Borrows the inner one.
class ComputeAround : public Compute {
 public:
  explicit ComputeAround(Compute& inner) : inner_(inner) {}
  std::byte* MessageBuffer(int lane, int index) override {
    return inner_.MessageBuffer(lane, index);
  }
  std::span<float> GradientBuffer(int stage, int index) override {
    return inner_.GradientBuffer(stage, index);
  }
  std::span<float> SharedGradient(int stage, int index) override {
    return inner_.SharedGradient(stage, index);
  }
  NormPlace NormsOf(int64_t step) override { return inner_.NormsOf(step); }
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    return inner_.Start(task, after);
  }

 private:
  Compute& inner_;
};

}  // namespace pipelag
