#include "models/architecture/portion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/error.h"

namespace pipelag {
namespace {

Bytes Rounded(double bytes) { return std::llround(bytes); }

template <typename T>
void Append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void CheckPositive(int64_t number, const char* what) {
  if (number < 1) throw Error(fmt::format("{} must be at least 1, not {}", what, number));
}

}  // namespace

int64_t Divided(int64_t whole, int64_t parts, const char* parallelism, const char* what) {
  if (whole % parts != 0) {
    throw Error(
        fmt::format("{} parallelism of {} does not divide {} {}", parallelism, parts, whole, what));
  }
  return whole / parts;
}

DeviceTokens TokensOf(const Sharding& sharding) {
  CheckPositive(sharding.tensor, "tensor parallelism");
  CheckPositive(sharding.context, "context parallelism");
  CheckPositive(sharding.expert, "expert parallelism");
  CheckPositive(sharding.sequences, "sequences per micro-batch");
  CheckPositive(sharding.tokens, "tokens per sequence");
  DeviceTokens device;
  device.sequences = sharding.sequences;
  device.keys = sharding.tokens;
  device.queries = Divided(sharding.tokens, sharding.context, "context", "tokens of a sequence");
  device.tokens = device.sequences * device.queries;
  device.own = sharding.sequence_parallel
                   ? Divided(device.tokens, sharding.tensor, "sequence", "tokens of a micro-batch")
                   : device.tokens;
  return device;
}

void Portion::Add(const Portion& other) {
  Append(products, other.products);
  Append(results, other.results);
  Append(repeated, other.repeated);
  passes_forward += other.passes_forward;
  passes_backward += other.passes_backward;
  Append(collectives_forward, other.collectives_forward);
  Append(collectives_backward, other.collectives_backward);
  kernels += other.kernels;
  kept += other.kept;
  held += other.held;
  widest = std::max(widest, other.widest);
  parameters += other.parameters;
  expert_parameters += other.expert_parameters;
  tied_parameters += other.tied_parameters;
}

void Portion::Pass(double forward_bytes, double backward_bytes) {
  passes_forward += forward_bytes;
  passes_backward += backward_bytes;
  ++kernels;
}

void Portion::Multiply(const MatrixProduct& product, std::initializer_list<int64_t> widths,
                       double bytes) {
  products.push_back(product);
  for (const int64_t width : widths) {
    MatrixProduct part = product;
    part.n = width;
    const double rows = static_cast<double>(product.m) * (1 - product.masked) * product.count;
    results.push_back({part, rows * static_cast<double>(width) * bytes});
  }
}

void Portion::Widen(const Sharding& sharding, double input_bytes, double result_bytes,
                    bool gathered) {
  const bool again = gathered && sharding.sequence_parallel && sharding.tensor > 1;
  widest = std::max(widest, (again ? 2 : 1) * input_bytes + result_bytes);
}

void Portion::Enter(const Sharding& sharding, double bytes) {
  if (sharding.tensor == 1) return;
  const auto add = [&](std::vector<StageCollective>& to, CollectiveKind kind) {
    to.push_back({kind, ShardingGroup::kTensor, Rounded(bytes)});
  };
  if (sharding.sequence_parallel) {
    add(collectives_forward, CollectiveKind::kAllGather);
    add(collectives_backward, CollectiveKind::kReduceScatter);
  } else {
    add(collectives_backward, CollectiveKind::kAllReduce);
  }
}

void Portion::Leave(const Sharding& sharding, double bytes) {
  if (sharding.tensor == 1) return;
  const auto add = [&](std::vector<StageCollective>& to, CollectiveKind kind) {
    to.push_back({kind, ShardingGroup::kTensor, Rounded(bytes)});
  };
  if (sharding.sequence_parallel) {
    add(collectives_forward, CollectiveKind::kReduceScatter);
    add(collectives_backward, CollectiveKind::kAllGather);
  } else {
    add(collectives_forward, CollectiveKind::kAllReduce);
  }
}

Portion Norm(const Transformer& model, const Sharding& sharding) {
  const double bytes =
      static_cast<double>(TokensOf(sharding).own * model.hidden * sharding.bytes_per_number);
  Portion norm;
  norm.Pass(2 * bytes, 3 * bytes);
  norm.kept = bytes;
  norm.widest = 2 * bytes;
  norm.parameters = NormParameters(model);
  return norm;
}

}  // namespace pipelag
