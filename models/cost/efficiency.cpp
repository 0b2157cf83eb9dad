#include "models/cost/efficiency.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/file.h"
#include "models/json_file.h"

namespace pipelag {
namespace {

double Rate(Bandwidth bandwidth) { return static_cast<double>(bandwidth.bytes_per_second); }

double Seconds(Nanoseconds time) { return static_cast<double>(time.count()) * 1e-9; }

double Ceil(int64_t number, int64_t of) {
  return std::ceil(static_cast<double>(number) / static_cast<double>(of));
}

Precision OfAttention(Precision precision) {
  return precision == Precision::kFp8 ? Precision::kBf16 : precision;
}

double Achievable(const Accelerator& accelerator, Precision precision) {
  const bool own = precision == Precision::kFp8 && accelerator.achievable_fp8 > 0;
  return own ? accelerator.achievable_fp8 : accelerator.achievable;
}

/// How much longer than at the best rate: ramps of the tiles, and the last wave of them.
double Stretch(const MatrixProduct& product, const Accelerator& accelerator,
               const Efficiency& efficiency) {
  const double tiles = Ceil(product.m, efficiency.tile) * Ceil(product.n, efficiency.tile) *
                       (product.weight ? 1 : product.count);
  const double waves = tiles / std::max(accelerator.multiprocessors, 1);
  return (1 + efficiency.ramp_depth / static_cast<double>(product.k)) *
         (1 + efficiency.tail_waves / waves);
}

bool MissesTensorCores(const MatrixProduct& product) {
  constexpr int64_t kAligned = 8;  // 16 bytes of 16-bit numbers
  return !product.weight && (product.n % kAligned != 0 || product.k % kAligned != 0);
}

/// Of the peak, for a head of that many numbers.
double FlashShare(const MatrixProduct& product, const Efficiency& efficiency) {
  constexpr double kCommonDim = 128;
  const auto dim = static_cast<double>(std::min(product.k, product.n));
  const double half = efficiency.attention_half_dim;
  return efficiency.attention * (dim / (dim + half)) * ((kCommonDim + half) / kCommonDim);
}

double BytesMoved(const MatrixProduct& product, double bytes_per_number) {
  const auto m = static_cast<double>(product.m);
  const auto n = static_cast<double>(product.n);
  const auto k = static_cast<double>(product.k);
  const double numbers = (product.reads ? m * k : 0) + k * n + (product.writes ? m * n : 0);
  return numbers * product.count * bytes_per_number;
}

}  // namespace

const std::vector<EfficiencyTerm>& EfficiencyTerms() {
  constexpr double kLeastShare = 0.001;
  constexpr double kLongest = 10;  // seconds
  static const std::vector<EfficiencyTerm> kTerms = {
      {"ramp_depth", &Efficiency::ramp_depth, 0, 1e5},
      {"tail_waves", &Efficiency::tail_waves, 0, 100},
      {"attention", &Efficiency::attention, kLeastShare, 1},
      {"attention_half_dim", &Efficiency::attention_half_dim, 0, 1e5},
      {"batched", &Efficiency::batched, kLeastShare, 1},
      {"memory", &Efficiency::memory, kLeastShare, 1},
      {"kernel", &Efficiency::kernel, 0, kLongest},
      {"launch", &Efficiency::launch, 0, kLongest},
      {"inside", &Efficiency::inside, kLeastShare, 1},
      {"between", &Efficiency::between, kLeastShare, 1},
      {"overlap", &Efficiency::overlap, 0, 1},
      {"collective", &Efficiency::collective, 0, kLongest},
      {"message", &Efficiency::message, 0, kLongest},
      {"compute_factor", &Efficiency::compute_factor, 0.01, 100},
      {"communication_factor", &Efficiency::communication_factor, 0.01, 100},
      {"microbatch_overhead", &Efficiency::microbatch_overhead, 0, kLongest},
  };
  return kTerms;
}

Efficiency ReadEfficiency(const std::filesystem::path& file) {
  const nlohmann::json root = ReadJson(file);
  if (!root.is_object()) {
    throw Error(fmt::format("{}: /: efficiencies are a JSON object, not {}", file.string(),
                            root.type_name()));
  }
  Efficiency efficiency;
  std::vector<std::string_view> names;
  for (const EfficiencyTerm& term : EfficiencyTerms()) names.push_back(term.name);
  CheckKeys(root, names, file.string() + ": ");
  for (const auto& [key, value] : root.items()) {
    const auto name = std::find(names.begin(), names.end(), key);
    const EfficiencyTerm& term = EfficiencyTerms()[static_cast<size_t>(name - names.begin())];
    const double number = value.is_number() ? value.get<double>() : term.least - 1;
    if (!(number >= term.least && number <= term.most)) {
      throw Error(fmt::format("{}: /{}: {} is not a number from {} to {}", file.string(), key,
                              ShowJson(value), term.least, term.most));
    }
    efficiency.*term.value = number;
  }
  return efficiency;
}

void WriteEfficiency(const Efficiency& efficiency, const std::filesystem::path& file) {
  nlohmann::ordered_json root;
  for (const EfficiencyTerm& term : EfficiencyTerms()) {
    root[std::string(term.name)] = efficiency.*term.value;
  }
  WriteFile(file, root.dump(2) + '\n');
}

double ProductSeconds(const MatrixProduct& product, const Accelerator& accelerator,
                      Precision precision, bool flash, const Efficiency& efficiency) {
  const bool attention = !product.weight;
  const Precision used = attention ? OfAttention(precision) : precision;
  double rate = PeakFlops(accelerator, used);
  if (attention && flash) {
    rate *= FlashShare(product, efficiency);
  } else {
    if (attention && MissesTensorCores(product)) {
      rate = PeakFlops(accelerator, Precision::kFp32);
    }
    rate *= Achievable(accelerator, used) / Stretch(product, accelerator, efficiency);
    if (attention) rate *= efficiency.batched;
  }
  const double width = precision == Precision::kFp32 || precision == Precision::kTf32 ? 4 : 2;
  const double moved =
      BytesMoved(product, width) / (Rate(accelerator.memory_bandwidth) * efficiency.memory);
  return std::max(product.Flops() / rate, moved);
}

double PassSeconds(Bytes bytes, const Accelerator& accelerator, const Efficiency& efficiency) {
  return static_cast<double>(bytes) / (Rate(accelerator.memory_bandwidth) * efficiency.memory);
}

double CollectiveSeconds(CollectiveKind kind, Bytes bytes, const RankGroup& group,
                         const Machine& machine, const Efficiency& efficiency) {
  if (group.members <= 1 || bytes == 0) return 0;
  const double members = group.members;
  const int per_node =
      std::min(group.members, std::max(1, machine.gpus_per_node / std::max(1, group.stride)));
  const bool leaves = per_node < group.members;
  const double inside = Rate(machine.inside.bandwidth) * efficiency.inside;
  // Of one GPU, while all of its node send.
  const double card = Rate(machine.between.bandwidth) * efficiency.between *
                      machine.cards_per_node / machine.gpus_per_node;
  const double vector = static_cast<double>(bytes);
  const double steps =
      std::ceil(std::log2(per_node)) * Seconds(machine.inside.latency) +
      (leaves ? std::ceil(std::log2(members / per_node)) : 0) * Seconds(machine.between.latency);
  const double ring = leaves ? std::min(inside, per_node * card) : inside;
  const double share = (members - 1) / members;
  double time = 0;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      time = 2 * share * vector / ring + 2 * steps;
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      time = share * vector / ring + steps;
      break;
    case CollectiveKind::kAllToAll: {
      const double far = (members - per_node) / members;
      const double near = (per_node - 1) / members;
      time = std::max(near * vector / inside, leaves ? far * vector / card : 0) + steps;
      break;
    }
    case CollectiveKind::kRing:
      time = vector / ring +
             (members - 1) * Seconds(leaves ? machine.between.latency : machine.inside.latency);
      break;
  }
  return (time + efficiency.collective) * efficiency.communication_factor;
}

}  // namespace pipelag
