#include "models/cost/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/cost/stage_parts.h"
#include "models/cost/state_bytes.h"
#include "models/error.h"
#include "models/update_time.h"

namespace pipelag {
namespace {

constexpr int kStateBytes = 4;

Nanoseconds Rounded(double seconds) {
  constexpr double kMost = 1e9;  // seconds: beyond that nanoseconds could no longer be added up
  if (!(seconds < kMost)) throw Error("a stage would take longer than 30 years");
  return Nanoseconds{static_cast<int64_t>(std::ceil(seconds * 1e9))};
}

Bytes BytesOf(double bytes) { return static_cast<Bytes>(std::ceil(bytes)); }

class Run {
 public:
  Run(const Transformer& model, const Machine& machine, const RunLayout& layout,
      const Efficiency& efficiency)
      : model_(model),
        machine_(machine),
        layout_(layout),
        efficiency_(efficiency),
        groups_(GroupsOf(layout)),
        bytes_(BytesPerParameter(layout.precision)) {}

  Estimate Estimated() {
    const std::vector<StageParts> stages = PartsOfStages(model_, machine_, layout_, efficiency_);
    Estimate estimate;
    SetMessages(estimate);
    SetTiedExchange(estimate);
    double recomputed = 0;
    for (const StageParts& stage : stages) {
      AddTimes(stage, estimate);
      AddMemory(stage, estimate);
      recomputed += stage.recomputed_flops;
    }
    if (layout_.sharding.expert == 1) estimate.costs.overlap.clear();
    if (layout_.blocking_messages) Block(estimate.costs);
    if (groups_.replicas.members == 1 && groups_.expert_replicas.members == 1) {
      estimate.reduction.clear();
    }
    estimate.memory.device = machine_.accelerator.memory;
    estimate.model_flops =
        ModelFlops(model_, layout_.sequences(), layout_.sharding.tokens, AttentionCount::kFull);
    const double devices = static_cast<double>(layout_.gpus()) / layout_.pipeline;
    estimate.hardware_flops = estimate.model_flops + recomputed * devices * layout_.microbatches;
    return estimate;
  }

 private:
  /// Neighbouring pipeline ranks; each device of a tensor group sends its own part over its own
  /// link (scatter-gather: arXiv 2104.04473, section 4.1), then they gather inside the node.
  void SetMessages(Estimate& estimate) const {
    const Sharding& sharding = layout_.sharding;
    const int64_t whole = sharding.sequences * (sharding.tokens / sharding.context) *
                          model_.hidden * sharding.bytes_per_number;
    Costs& costs = estimate.costs;
    if (layout_.pipeline == 1) return;
    costs.activation_bytes = whole / sharding.tensor;
    const int apart = sharding.tensor * sharding.context * layout_.data;
    const bool leaves = apart * layout_.pipeline > machine_.gpus_per_node;
    // As many GPUs of a node send to another one at once.
    const double senders = std::min(apart, machine_.gpus_per_node);
    const double share =
        leaves ? efficiency_.between * std::min(1.0, machine_.cards_per_node / senders)
               : efficiency_.inside;
    const LinkSpec& link = leaves ? machine_.between : machine_.inside;
    const double rate = static_cast<double>(link.bandwidth.bytes_per_second) * share /
                        efficiency_.communication_factor;
    costs.p2p_bandwidth = {std::max<int64_t>(1, static_cast<int64_t>(rate))};
    costs.p2p_latency = link.latency + Rounded(efficiency_.collective);
    if (sharding.tensor > 1 && !sharding.sequence_parallel) {
      costs.p2p_latency += Rounded(CollectiveSeconds(CollectiveKind::kAllGather, whole,
                                                     groups_.stage.tensor, machine_, efficiency_));
    }
  }

  /// An all-reduce of two members at the ends of the pipeline, as Megatron-LM has it.
  void SetTiedExchange(Estimate& estimate) const {
    const int64_t shared = HeadWork(model_, layout_.sharding).tied_parameters;
    if (layout_.pipeline == 1 || shared == 0) return;
    const int apart = layout_.sharding.tensor * layout_.sharding.context * layout_.data;
    estimate.tied_exchange = Rounded(CollectiveSeconds(
        CollectiveKind::kAllReduce, shared * bytes_.gradient,
        {.members = 2, .stride = apart * (layout_.pipeline - 1)}, machine_, efficiency_));
  }

  /// A message takes its time at the end of the action that makes it, and none afterwards.
  void Block(Costs& costs) const {
    const Nanoseconds message = TransferTime(costs.activation_bytes, costs.p2p_bandwidth) +
                                costs.p2p_latency + Rounded(efficiency_.message);
    for (size_t s = 0; s < costs.forward.size(); ++s) {
      if (s + 1 < costs.forward.size()) costs.forward[s] += message;
      if (s == 0) continue;
      costs.backward[s] += message;
      costs.backward_input[s] += message;
    }
    costs.p2p_bandwidth = {};
    costs.p2p_latency = Nanoseconds{0};
  }

  double Gathering(const StageParts& stage, CollectiveKind kind, int bytes_each) const {
    const auto of = [&](int64_t parameters, const RankGroup& group) {
      return CollectiveSeconds(kind, parameters * bytes_each, group, machine_, efficiency_);
    };
    return of(stage.parameters - stage.expert_parameters, groups_.replicas) +
           of(stage.expert_parameters, groups_.expert_replicas);
  }

  /// Device and host work beside each other, but neither is the slower one all the time: a norm of
  /// order 3 in place of the maximum.
  static double Together(double device, double host) {
    return std::cbrt(device * device * device + host * host * host);
  }

  /// What is shown of `time` if each block's share runs beside the other blocks' `beside`.
  static double Shown(double time, double beside, int blocks) {
    const double parts = std::max(blocks, 1);
    return std::max(time / parts, time - beside * (parts - 1) / parts);
  }

  /// Gradients of a micro-batch are added to those of the others before it.
  double Accumulation(const StageParts& stage) const {
    if (layout_.microbatches == 1) return 0;
    return efficiency_.compute_factor *
           PassSeconds(2 * stage.parameters * bytes_.gradient, machine_.accelerator, efficiency_);
  }

  void AddTimes(const StageParts& stage, Estimate& estimate) const {
    const PartSeconds& own = stage.seconds;
    const double extra = efficiency_.microbatch_overhead / layout_.chunks;
    const auto action = [&](double device, double kernels) {
      const double host = HostSeconds(kernels, efficiency_);
      return (layout_.blocking_launches ? device + host : Together(device, host)) + extra;
    };
    const double kernels = own.forward_kernels;
    double forward = action(own.forward, kernels);
    double input = action(own.again + own.input, own.again_kernels + kernels);
    const double weights = layout_.fused_accumulation ? Together(own.weight, Accumulation(stage))
                                                      : own.weight + Accumulation(stage);
    double weight = action(weights, kernels / 2) - extra;
    double fused = action(own.again + own.input + weights, own.again_kernels + 2 * kernels);
    double reduction = Gathering(stage, CollectiveKind::kAllReduce, bytes_.gradient);
    if (layout_.shard_states > 0) {
      const double gathered = Gathering(stage, CollectiveKind::kAllGather, bytes_.weight);
      const double scattered = Gathering(stage, CollectiveKind::kReduceScatter, bytes_.gradient);
      if (layout_.shard_states >= 3) {
        const double split = gathered + scattered;
        forward += Shown(gathered, forward, stage.blocks);
        fused += Shown(split, fused, stage.blocks);
        input += Shown(split, input + weight, stage.blocks);
        reduction = 0;
      } else if (layout_.overlap_reduction) {
        reduction = Shown(scattered, fused, stage.blocks) + Shown(gathered, forward, stage.blocks);
      } else {
        reduction = gathered + scattered;
      }
    } else if (layout_.overlap_reduction) {
      reduction = Shown(reduction, fused, stage.blocks);
    }
    Costs& costs = estimate.costs;
    costs.forward.push_back(Rounded(forward));
    costs.backward.push_back(Rounded(fused));
    costs.backward_input.push_back(Rounded(input));
    costs.backward_weight.push_back(Rounded(weight));
    costs.update.push_back(UpdateOf(stage));
    // Each hides its experts' messages behind the other's work (DualPipe: arXiv 2412.19437, section
    // 3.2.1).
    const double exchange = own.exchange_forward + own.exchange_backward;
    costs.overlap.push_back(
        Rounded(std::max(forward + fused - exchange, std::min(exchange, forward + fused))));
    estimate.reduction.push_back(Rounded(reduction));
  }

  UpdateCost CostOfUpdate(const StageParts& stage) const {
    UpdateCost cost;
    for (const ParameterShape& tensor : stage.tensors) {
      cost += OptimizerCost(layout_.optimizer, tensor);
    }
    return cost;
  }

  /// What a device holds of its stage's states if copies shard them. Routed experts have fewer
  /// copies.
  double StateShare(const StageParts& stage) const {
    if (layout_.shard_states == 0 || stage.parameters == 0) return 1;
    const double experts =
        static_cast<double>(stage.expert_parameters) / static_cast<double>(stage.parameters);
    return (1 - experts) / std::max(1, groups_.replicas.members) +
           experts / std::max(1, groups_.expert_replicas.members);
  }

  Nanoseconds UpdateOf(const StageParts& stage) const {
    UpdateCost cost = CostOfUpdate(stage);
    const double share = StateShare(stage);
    cost.floats_moved = static_cast<int64_t>(static_cast<double>(cost.floats_moved) * share);
    cost.matrix_flops *= share;
    const Accelerator& accelerator = machine_.accelerator;
    const DeviceRates rates{
        {static_cast<int64_t>(PeakFlops(accelerator, layout_.precision == Precision::kFp8
                                                         ? Precision::kBf16
                                                         : layout_.precision) *
                              accelerator.achievable / efficiency_.compute_factor)},
        {static_cast<int64_t>(static_cast<double>(accelerator.memory_bandwidth.bytes_per_second) *
                              efficiency_.memory / efficiency_.compute_factor)}};
    return UpdateTime(cost, rates);
  }

  void AddMemory(const StageParts& stage, Estimate& estimate) const {
    const auto parameters = static_cast<double>(stage.parameters);
    const double share = StateShare(stage);
    const int zero = layout_.shard_states;
    StageMemory memory;
    memory.weights = BytesOf(parameters * bytes_.weight * (zero >= 3 ? share : 1));
    memory.gradients = BytesOf(parameters * bytes_.gradient * (zero >= 2 ? share : 1));
    memory.optimizer =
        BytesOf((parameters * bytes_.own +
                 static_cast<double>(CostOfUpdate(stage).state_floats) * kStateBytes) *
                share);
    memory.activation = stage.activation;
    memory.freed_at_input = stage.activation - stage.held_for_weight;
    memory.message = estimate.costs.activation_bytes;
    memory.workspace = stage.recompute_peak;
    if (zero >= 3) {  // two blocks are whole at a time, and the gradients of one
      const double block = parameters / std::max(stage.blocks, 1);
      memory.workspace += BytesOf(block * (2 * bytes_.weight + bytes_.gradient));
    }
    estimate.memory.stages.push_back(memory);
  }

  const Transformer& model_;
  const Machine& machine_;
  const RunLayout& layout_;
  const Efficiency& efficiency_;
  RunGroups groups_;
  NumberBytes bytes_;
};

void CheckLayout(const Transformer& model, const RunLayout& layout) {
  CheckLayoutSize(layout);
  const int stages = layout.pipeline * layout.chunks;
  if (layout.split.empty() && stages > model.layers()) {
    throw Error(fmt::format("{} has {} blocks, too few for {} stages ({} ranks of {})",
                            model.name.empty() ? "the network" : model.name, model.layers(), stages,
                            layout.pipeline, layout.chunks));
  }
  const Sharding& sharding = layout.sharding;
  const int ranks = sharding.tensor * sharding.context * layout.data;
  const int cut = sharding.expert_tensor > 0 ? sharding.expert_tensor : sharding.tensor;
  if (ranks % (sharding.expert * cut) != 0) {
    throw Error(
        fmt::format("expert parallelism of {}, each expert cut in {}, does not divide the "
                    "{} ranks of a stage (tensor {}, context {}, data {})",
                    sharding.expert, cut, ranks, sharding.tensor, sharding.context, layout.data));
  }
  if (layout.shard_states < 0 || layout.shard_states > 3) {
    throw Error(fmt::format("there is no ZeRO stage {}: 0 to 3", layout.shard_states));
  }
}

}  // namespace

void CheckLayoutSize(const RunLayout& layout) {
  // Beyond these products of sizes leave their integers.
  constexpr int64_t kMostGpus = 100'000'000;
  constexpr double kMostTokens = 1e9;
  const Sharding& sharding = layout.sharding;
  const int64_t copies = int64_t{1} * sharding.tensor * sharding.context;
  if (copies > kMostGpus || layout.data > kMostGpus / copies ||
      layout.pipeline > kMostGpus / (copies * layout.data)) {
    throw Error(fmt::format("the layout takes more than {} GPUs", kMostGpus));
  }
  const double tokens =
      static_cast<double>(sharding.sequences) * static_cast<double>(sharding.tokens);
  if (tokens > kMostTokens) {
    throw Error(
        fmt::format("a micro-batch has {:.0f} tokens, more than {:.0f}", tokens, kMostTokens));
  }
}

Estimate EstimateRun(const Transformer& model, const Machine& machine, const RunLayout& layout,
                     const Efficiency& efficiency) {
  CheckLayout(model, layout);
  PeakFlops(machine.accelerator, layout.precision);
  return Run(model, machine, layout, efficiency).Estimated();
}

}  // namespace pipelag
