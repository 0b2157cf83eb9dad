// Feed-forward networks as one device computes them: dense, and routed experts with what every
// token passes besides. Knows nothing of recomputation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/architecture/portion.h"
#include "models/error.h"

namespace pipelag {
namespace {

constexpr double kBytesOfRouting = 4;  // routers compute in 32 bits

/// Two products with an activation function between them, `count` times over `rows` tokens each.
/// Its input is kept, and held for its weights, by whoever made it.
Portion TwoProducts(double rows, double count, int64_t hidden, int64_t inner, bool gated,
                    double bytes) {
  const int64_t into = gated ? 2 * inner : inner;
  const auto m = static_cast<int64_t>(std::ceil(rows));
  const double rounded_up = 1 - rows / static_cast<double>(m);
  const double numbers = rows * count * static_cast<double>(inner);
  Portion mlp;
  MatrixProduct up = {m, into, hidden, count};
  MatrixProduct down = {m, hidden, inner, count};
  up.masked = down.masked = rounded_up;
  if (gated) {
    mlp.Multiply(up, {inner, inner}, bytes);
  } else {
    mlp.Multiply(up, {inner}, bytes);
  }
  mlp.Multiply(down, {hidden}, bytes);
  mlp.kernels = 2;
  mlp.Pass((gated ? 3 : 2) * bytes * numbers, (gated ? 5 : 3) * bytes * numbers);
  mlp.held = bytes * (numbers + rows * count * static_cast<double>(into + hidden));
  mlp.kept = (gated ? 3 : 2) * bytes * numbers;
  mlp.widest = std::max(mlp.kept, bytes * rows * count * static_cast<double>(into + hidden));
  return mlp;
}

/// How the tokens of one device meet its experts.
struct Routing {
  double dispatched = 0;  ///< (token, expert) pairs that leave this device, to whichever expert
  double pairs = 0;       ///< that its experts compute
  int64_t experts = 0;    ///< on this device
  int cut = 1;            ///< parts of each expert
};

Routing RoutingOf(const Block& block, const Sharding& sharding) {
  const DeviceTokens device = TokensOf(sharding);
  Routing routing;
  routing.cut = sharding.expert_tensor > 0 ? sharding.expert_tensor : sharding.tensor;
  if (sharding.tensor % routing.cut != 0) {
    throw Error(fmt::format("tensor parallelism of {} does not divide by the experts' own of {}",
                            sharding.tensor, routing.cut));
  }
  if (routing.cut < sharding.tensor && !sharding.sequence_parallel) {
    throw Error(
        fmt::format("tensor parallelism of {} for experts, below the {} of the rest, needs "
                    "sequence parallelism",
                    routing.cut, sharding.tensor));
  }
  routing.experts = Divided(block.experts.routed, sharding.expert, "expert", "routed experts");
  const double room = sharding.capacity > 0 ? sharding.capacity : 1;
  routing.dispatched =
      static_cast<double>(device.own) * static_cast<double>(block.experts.active) * room;
  routing.pairs =
      sharding.sequence_parallel ? routing.dispatched * routing.cut : routing.dispatched;
  return routing;
}

/// To the experts' devices and back, with the tokens sorted by expert on the way.
void AddDispatch(Portion& mlp, const Routing& routing, const Sharding& sharding, int64_t hidden) {
  const double width = static_cast<double>(hidden) * sharding.bytes_per_number;
  const int sorts = sharding.expert > 1 ? 2 : 1;
  for (int i = 0; i < 2 * sorts; ++i) {
    mlp.Pass(2 * width * routing.dispatched, 2 * width * routing.dispatched);
  }
  if (sharding.expert > 1) {
    const double sent = width * routing.dispatched * (sharding.expert - 1) / sharding.expert;
    const StageCollective exchange = {CollectiveKind::kAllToAll, ShardingGroup::kExpert,
                                      static_cast<Bytes>(std::llround(sent)), 2};
    mlp.collectives_forward.push_back(exchange);
    mlp.collectives_backward.push_back(exchange);
  }
  if (sharding.sequence_parallel && routing.cut > 1) {
    mlp.Enter(sharding, width * routing.pairs);
    mlp.Leave(sharding, width * routing.pairs);
  }
}

Portion Router(const Transformer& model, const Block& block, const Sharding& sharding) {
  const DeviceTokens device = TokensOf(sharding);
  const int64_t routed = block.experts.routed;
  Portion router;
  router.Multiply({device.own, routed, model.hidden}, {routed}, kBytesOfRouting);
  router.parameters = routed * (model.hidden + (block.experts.router_bias ? 1 : 0));
  router.kernels = 1;
  const double bytes = kBytesOfRouting * static_cast<double>(device.own * routed);
  router.Pass(2 * bytes, 3 * bytes);
  router.kept = router.held = bytes;
  return router;
}

Portion Routed(const Transformer& model, const Block& block, const Sharding& sharding) {
  const Experts& experts = block.experts;
  const Routing routing = RoutingOf(block, sharding);
  const int64_t inner = Divided(experts.ffn, routing.cut, "tensor", "inner numbers of an expert");
  const auto here = static_cast<double>(routing.experts);
  Portion mlp = TwoProducts(routing.pairs / here, here, model.hidden, inner, block.gated_mlp,
                            sharding.bytes_per_number);
  const double input =
      routing.pairs * static_cast<double>(model.hidden * sharding.bytes_per_number);
  mlp.kept += input;
  mlp.held += input;
  mlp.parameters =
      routing.experts * MlpParameters(model.hidden, inner, block.gated_mlp, experts.bias);
  mlp.expert_parameters = mlp.parameters;
  AddDispatch(mlp, routing, sharding, model.hidden);
  return mlp;
}

Portion Shared(const Transformer& model, const Block& block, const Sharding& sharding) {
  const DeviceTokens device = TokensOf(sharding);
  const int64_t inner = Divided(block.experts.shared_ffn, sharding.tensor, "tensor",
                                "inner numbers of shared experts");
  Portion mlp = TwoProducts(static_cast<double>(device.tokens), 1, model.hidden, inner,
                            block.gated_mlp, sharding.bytes_per_number);
  mlp.parameters = MlpParameters(model.hidden, inner, block.gated_mlp, false);
  if (block.experts.shared_gate) {
    mlp.Multiply({device.own, 1, model.hidden}, {1}, sharding.bytes_per_number);
    mlp.parameters += model.hidden;
    mlp.kernels += 1;
  }
  return mlp;
}

}  // namespace

Portion DenseMlp(const Transformer& model, const Block& block, const Sharding& sharding) {
  const DeviceTokens device = TokensOf(sharding);
  const int64_t inner = Divided(block.ffn, sharding.tensor, "tensor", "inner numbers of the MLP");
  Portion mlp = TwoProducts(static_cast<double>(device.tokens), 1, model.hidden, inner,
                            block.gated_mlp, sharding.bytes_per_number);
  const double column = static_cast<double>(device.tokens) * sharding.bytes_per_number;
  mlp.Widen(sharding, column * static_cast<double>(model.hidden),
            column * static_cast<double>(block.gated_mlp ? 2 * inner : inner), true);
  mlp.parameters = MlpParameters(model.hidden, inner, block.gated_mlp, block.mlp_bias);
  return mlp;
}

Portion ExpertMlp(const Transformer& model, const Block& block, const Sharding& sharding) {
  const double bytes =
      static_cast<double>(TokensOf(sharding).tokens * model.hidden * sharding.bytes_per_number);
  Portion mlp = Router(model, block, sharding);
  mlp.Add(Routed(model, block, sharding));
  if (block.experts.shared_ffn > 0) mlp.Add(Shared(model, block, sharding));
  // With sequence parallelism the routed tokens travel by themselves, and only what every token
  // passes is gathered. Without it, both halves' sums meet in one reduction.
  if (block.experts.shared_ffn > 0 || !sharding.sequence_parallel) {
    mlp.Enter(sharding, bytes);
    mlp.Leave(sharding, bytes);
  }
  return mlp;
}

}  // namespace pipelag
