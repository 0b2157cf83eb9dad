#include "runtime/device/optimizers.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace pipelag {
namespace {

void Check(const char* kind, const std::string& name, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw Error(fmt::format("there is no {} \"{}\" on a GPU; there are {}", kind, name,
                          fmt::join(known, ", ")));
}

}  // namespace

std::vector<std::string> DeviceOptimizerNames() {
  return {"adamw", "nadam", "adan", "lion", "muon", "sgd", "sgd-ema"};
}

std::vector<std::string> DeviceCorrectionNames() {
  return {"none",     "error-feedback", "weight-prediction", "dc-asgd", "dc-asgd-adaptive",
          "pipemare", "rate-damping"};
}

void CheckDeviceOptimizer(const OptimizerOptions& optimizer, const CorrectionOptions& correction) {
  Check("optimizer", optimizer.name, DeviceOptimizerNames());
  Check("correction", correction.name, DeviceCorrectionNames());
}

}  // namespace pipelag
