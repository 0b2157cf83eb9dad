// A backend that fails, or worse, at a task of one's choice, and what is then said.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "runtime/compute.h"

namespace pipelag {

class PowerCut : public Compute {
 public:
  PowerCut(Compute& inner, int countdown, std::function<void()> cut)
      : inner_(inner), countdown_(countdown), cut_(std::move(cut)) {}
  std::byte* MessageBuffer(int lane, int index) override {
    return inner_.MessageBuffer(lane, index);
  }
  std::span<float> GradientBuffer(int stage, int index) override {
    return inner_.GradientBuffer(stage, index);
  }
  std::span<float> SharedGradient(int stage, int index) override {
    return inner_.SharedGradient(stage, index);
  }
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    if (countdown_-- == 0) cut_();
    return inner_.Start(task, after);
  }

 private:
  Compute& inner_;
  int countdown_;
  std::function<void()> cut_;
};

/// Empty where there is none.
inline std::string TextOf(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

}  // namespace pipelag
