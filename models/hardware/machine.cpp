#include "models/hardware/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/json_file.h"
#include "models/names.h"
#include "models/presets.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFolder = "hardware";

struct NamedPrecision {
  std::string_view name;
  Precision precision;
};
constexpr NamedPrecision kPrecisions[] = {{"fp32", Precision::kFp32},
                                          {"tf32", Precision::kTf32},
                                          {"fp16", Precision::kFp16},
                                          {"bf16", Precision::kBf16},
                                          {"fp8", Precision::kFp8}};

/// An object of a machine file, whose errors name the place.
class Place {
 public:
  Place(const Json& value, std::string path, const std::vector<std::string_view>& known)
      : value_(value), path_(std::move(path)) {
    if (!value.is_object()) {
      throw Error(fmt::format("{}: expected an object, not {}", path_, value.type_name()));
    }
    CheckKeys(value, known, path_);
  }

  std::string At(std::string_view key) const { return fmt::format("{}/{}", path_, key); }
  bool Has(const char* key) const { return value_.contains(key); }
  const Json& Value(const char* key) const {
    const auto found = value_.find(key);
    if (found == value_.end()) throw Error(fmt::format("{}: is missing", At(key)));
    return *found;
  }
  std::string Text(const char* key) const {
    if (!Value(key).is_string()) throw Error(fmt::format("{}: expected a text", At(key)));
    return Value(key).get<std::string>();
  }
  double Number(const char* key, double least, double most) const {
    const Json& value = Value(key);
    const double number = value.is_number() ? value.get<double>() : least - 1;
    if (!(number >= least && number <= most)) {
      throw Error(fmt::format("{}: {} is not a number from {} to {}", At(key), ShowJson(value),
                              least, most));
    }
    return number;
  }
  int Count(const char* key) const {
    constexpr int64_t kMost = 1'000'000;
    const Json& count = Value(key);
    if (!count.is_number_integer() || count.get<int64_t>() < 1 || count.get<int64_t>() > kMost) {
      throw Error(fmt::format("{}: expected a whole number from 1 to {}", At(key), kMost));
    }
    return count.get<int>();
  }
  template <class Parse>
  auto Parsed(const char* key, Parse parse) const {
    const std::string text = Text(key);
    try {
      return parse(text);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", At(key), error.what()));
    }
  }

 private:
  const Json& value_;
  std::string path_;
};

// Beyond these ranges rates and times built of them leave 64-bit integers.

Bandwidth LimitedRate(const std::string& text) {
  constexpr int64_t kLeast = 1'000'000;
  constexpr int64_t kMost = 1'000'000'000'000'000;
  const Bandwidth rate = ParseBandwidth(text);
  if (rate.bytes_per_second == 0) throw Error("a machine's bandwidth has a limit");
  if (rate.bytes_per_second < kLeast || rate.bytes_per_second > kMost) {
    throw Error(fmt::format("'{}' is not from 1MB/s to 1000000GB/s", text));
  }
  return rate;
}

Nanoseconds LimitedLatency(const std::string& text) {
  const Nanoseconds latency = ParseDuration(text);
  if (latency > std::chrono::seconds(1)) throw Error(fmt::format("'{}' is more than 1s", text));
  return latency;
}

Bytes LimitedMemory(const std::string& text) {
  const Bytes memory = ParseBytes(text);
  if (memory < (Bytes{1} << 20) || memory > (Bytes{1} << 46)) {
    throw Error(fmt::format("'{}' is not from 1MiB to 65536GiB", text));
  }
  return memory;
}

/// Of a peak.
double ShareAt(const Place& place, const char* key) { return place.Number(key, 0.01, 1); }

LinkSpec LinkOf(const Place& machine, const char* key) {
  const Place link(machine.Value(key), machine.At(key), {"bandwidth", "latency"});
  return {link.Parsed("bandwidth", LimitedRate), link.Parsed("latency", LimitedLatency)};
}

Accelerator AcceleratorOf(const Place& machine) {
  const Place own(machine.Value("accelerator"), machine.At("accelerator"),
                  {"name", "peak_tflops", "achievable", "achievable_fp8", "multiprocessors",
                   "memory", "memory_bandwidth", "source"});
  Accelerator accelerator;
  accelerator.name = own.Text("name");
  std::vector<std::string_view> names;
  for (const NamedPrecision& known : kPrecisions) names.push_back(known.name);
  const Place peaks(own.Value("peak_tflops"), own.At("peak_tflops"), names);
  for (const NamedPrecision& known : kPrecisions) {
    const std::string name(known.name);
    if (!peaks.Has(name.c_str())) continue;
    accelerator.peak_flops[known.precision] = peaks.Number(name.c_str(), 0.001, 50'000) * 1e12;
  }
  accelerator.achievable = ShareAt(own, "achievable");
  if (own.Has("achievable_fp8")) accelerator.achievable_fp8 = ShareAt(own, "achievable_fp8");
  accelerator.multiprocessors = own.Count("multiprocessors");
  accelerator.memory = own.Parsed("memory", LimitedMemory);
  accelerator.memory_bandwidth = own.Parsed("memory_bandwidth", LimitedRate);
  accelerator.source = own.Text("source");
  return accelerator;
}

Machine MachineOf(const Json& root, const std::string& file) {
  const Place own(
      root, file + ": ",
      {"name", "accelerator", "gpus_per_node", "inside", "cards_per_node", "between", "source"});
  Machine machine;
  machine.name = own.Text("name");
  machine.accelerator = AcceleratorOf(own);
  machine.gpus_per_node = own.Count("gpus_per_node");
  machine.inside = LinkOf(own, "inside");
  machine.cards_per_node = own.Count("cards_per_node");
  machine.between = LinkOf(own, "between");
  machine.source = own.Text("source");
  return machine;
}

}  // namespace

Machine ReadMachine(const std::string& name_or_file) {
  if (const Preset* preset = FindPreset(kFolder, name_or_file)) {
    return MachineOf(ParseJson(preset->text, preset->name), std::string(preset->name));
  }
  if (name_or_file.ends_with(".json") || name_or_file.find('/') != std::string::npos) {
    return MachineOf(ReadJson(name_or_file), name_or_file);
  }
  throw Error(fmt::format("there is no machine '{}'; the nearest known one is '{}'", name_or_file,
                          NearestPreset(kFolder, name_or_file)));
}

std::vector<std::string> MachineNames() {
  std::vector<std::string> names;
  for (const Preset& preset : PresetsOf(kFolder)) names.emplace_back(preset.name);
  return names;
}

Precision ParsePrecision(std::string_view name) {
  std::vector<std::string_view> names;
  for (const NamedPrecision& known : kPrecisions) {
    if (known.name == name) return known.precision;
    names.push_back(known.name);
  }
  throw Error(
      fmt::format("there is no precision '{}'; did you mean '{}'?", name, Nearest(name, names)));
}

std::string_view PrecisionName(Precision precision) {
  for (const NamedPrecision& known : kPrecisions) {
    if (known.precision == precision) return known.name;
  }
  CHECK(false);
}

double PeakFlops(const Accelerator& accelerator, Precision precision) {
  const auto peak = accelerator.peak_flops.find(precision);
  if (peak != accelerator.peak_flops.end()) return peak->second;
  throw Error(
      fmt::format("{} has no arithmetic in {}", accelerator.name, PrecisionName(precision)));
}

Cluster ClusterOf(const Machine& machine, int nodes) {
  return NodesCluster({.nodes = nodes,
                       .gpus = machine.gpus_per_node,
                       .nics = machine.cards_per_node,
                       .nvlink = machine.inside,
                       .nic = machine.between});
}

}  // namespace pipelag
