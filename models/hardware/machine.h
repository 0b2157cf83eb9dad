// Devices and nodes that people rent or own: their peaks, memory and links, each with its source.
// Knows no networks and no schedules.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/cluster.h"
#include "models/units.h"

namespace pipelag {

enum class Precision : uint8_t { kFp32, kTf32, kFp16, kBf16, kFp8 };

struct Accelerator {
  std::string name;
  std::map<Precision, double> peak_flops;  ///< dense, per second
  Bytes memory = 0;
  Bandwidth memory_bandwidth;
  double achievable = 1;      ///< of the peak, by the best matrix products measured on it
  double achievable_fp8 = 0;  ///< of the fp8 peak; 0: as `achievable`
  int multiprocessors = 0;    ///< each works on one tile of a product at a time
  std::string source;
};

/// Nodes of one kind, however many.
struct Machine {
  std::string name;
  Accelerator accelerator;
  int gpus_per_node = 8;
  LinkSpec inside;  ///< between GPUs of a node, per GPU and direction
  int cards_per_node = 8;
  LinkSpec between;  ///< of one network card, per direction
  std::string source;
};

/// A preset's name or a JSON file of the same form (models/hardware/presets). Throws Error naming
/// the file and the place in it, also for figures out of range (a share of a peak from 0.01 to 1, a
/// memory that holds something), or the nearest known name.
Machine ReadMachine(const std::string& name_or_file);
std::vector<std::string> MachineNames();

/// "fp32", "tf32", "fp16", "bf16", "fp8". Throws Error naming the nearest.
Precision ParsePrecision(std::string_view name);
std::string_view PrecisionName(Precision precision);
/// Throws Error if the accelerator has no such arithmetic.
double PeakFlops(const Accelerator& accelerator, Precision precision);

/// The cluster of `nodes` such nodes.
Cluster ClusterOf(const Machine& machine, int nodes);

}  // namespace pipelag
