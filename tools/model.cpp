// `pipelag model`: what a network consists of, and what its parts ask of one device.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "models/architecture/config.h"
#include "models/architecture/work.h"
#include "models/cost/state_bytes.h"
#include "tools/arguments.h"
#include "tools/flags.h"
#include "tools/shape_flags.h"
#include "tools/subcommand.h"
#include "tools/table.h"

namespace pipelag {
namespace {

using Json = nlohmann::ordered_json;

struct Described {
  Transformer model;
  Sharding sharding;
  ParameterCount count;
  NetworkWork work;
  Precision precision = Precision::kBf16;
  std::string optimizer;
  StateBytes states;  ///< on the device, nothing sharded
};

StateBytes StatesOf(const Described& described) {
  const NetworkWork& work = described.work;
  const auto of = [&](const PartWork& part) {
    return StateBytesOf(part, described.precision, described.optimizer);
  };
  StateBytes states = of(work.embedding);
  for (const std::vector<int>& equal : EqualBlocks(described.model)) {
    const StateBytes block = of(work.blocks[static_cast<size_t>(equal[0])]);
    const auto times = static_cast<int64_t>(equal.size());
    states += {block.weights * times, block.gradients * times, block.optimizer * times};
  }
  PartWork head = work.head;
  head.parameters -= head.tied_parameters;  // the embedding is on the device too
  states += of(head);
  return states;
}

std::string_view KindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kRing:
      break;
  }
  return "ring";
}

std::string_view GroupName(ShardingGroup group) {
  switch (group) {
    case ShardingGroup::kTensor:
      return "tensor";
    case ShardingGroup::kContext:
      return "context";
    case ShardingGroup::kExpert:
      break;
  }
  return "expert";
}

Json CollectivesJson(const std::vector<StageCollective>& collectives) {
  Json rows = Json::array();
  for (const StageCollective& collective : collectives) {
    rows.push_back({{"kind", KindName(collective.kind)},
                    {"group", GroupName(collective.group)},
                    {"bytes", collective.bytes},
                    {"count", collective.count}});
  }
  return rows;
}

template <typename Work>
Json FlopsJson(const Work& work) {
  return {{"F", work.ForwardFlops()},
          {"I", work.BackwardInputFlops()},
          {"W", work.BackwardWeightFlops()},
          {"recomputed", work.RecomputedFlops()}};
}

Json PartJson(Json row, int64_t parameters, const PartWork& work) {
  row["parameters"] = parameters;
  row["device_parameters"] = work.parameters;
  if (work.expert_parameters > 0) row["device_expert_parameters"] = work.expert_parameters;
  row["flops"] = FlopsJson(work);
  row["activation_bytes"] = work.activation;
  row["held_for_weight_bytes"] = work.held_for_weight;
  row["recompute_peak_bytes"] = work.recompute_peak;
  row["memory_pass_bytes"] = {{"F", work.passes_forward},
                              {"B", work.passes_backward},
                              {"recomputed", work.passes_recomputed}};
  row["collectives"] = {{"F", CollectivesJson(work.collectives_forward)},
                        {"B", CollectivesJson(work.collectives_backward)},
                        {"recomputed", CollectivesJson(work.collectives_recomputed)}};
  row["kernels"] = work.kernels_forward;
  return row;
}

Json PerLayer(const Described& described) {
  const auto& [model, sharding, count, work, precision, optimizer, states] = described;
  Json rows = Json::array();
  rows.push_back(PartJson({{"part", "embedding"}}, count.embedding, work.embedding));
  for (size_t i = 0; i < work.blocks.size(); ++i) {
    rows.push_back(PartJson({{"part", "block"}, {"layer", i}}, count.blocks[i], work.blocks[i]));
  }
  rows.push_back(PartJson({{"part", "head"}}, count.head, work.head));
  return rows;
}

double PerToken(const Described& described, AttentionCount attention) {
  return ModelFlopsPerToken(described.model, described.sharding.tokens, attention);
}

Json JsonOf(const Described& described) {
  const auto& [model, sharding, count, work, precision, optimizer, states] = described;
  Json json = {{"model", model.name},
               {"architecture", model.architecture},
               {"layers", model.layers()},
               {"hidden", model.hidden},
               {"vocabulary", model.vocabulary},
               {"context", model.context},
               {"parameters", count.Total()},
               {"active_parameters", count.active}};
  if (count.prediction > 0) json["prediction_parameters"] = count.prediction;
  json["model_flops_per_token"] = {{"full", PerToken(described, AttentionCount::kFull)},
                                   {"visible", PerToken(described, AttentionCount::kVisible)}};
  json["microbatch"] = {{"sequences", sharding.sequences},
                        {"tokens_per_sequence", sharding.tokens},
                        {"tensor", sharding.tensor},
                        {"sequence_parallel", sharding.sequence_parallel},
                        {"context", sharding.context},
                        {"expert", sharding.expert},
                        {"expert_tensor", sharding.expert_tensor},
                        {"recompute", RecomputeName(sharding.recompute)},
                        {"attention", sharding.flash ? "flash" : "plain"},
                        {"cross_entropy", sharding.loss_in_place ? "in-place" : "plain"},
                        {"bytes_per_number", sharding.bytes_per_number}};
  json["total"] = {{"device_parameters", work.Parameters()},
                   {"flops", FlopsJson(work)},
                   {"activation_bytes", work.Activation()},
                   {"weight_bytes", described.states.weights},
                   {"gradient_bytes", described.states.gradients},
                   {"optimizer_bytes", described.states.optimizer}};
  json["per_layer"] = PerLayer(described);
  return json;
}

std::string DescribeBlock(const Block& block) {
  std::string text;
  if (block.latent.key_value_rank > 0) {
    text = fmt::format("{} heads out of a latent vector of {}", block.heads,
                       block.latent.key_value_rank);
  } else {
    text = fmt::format("{} heads of {}", block.heads, block.head_dim);
    if (block.key_value_heads != block.heads) {
      text += fmt::format(", {} of keys and values", block.key_value_heads);
    }
  }
  if (block.window > 0) text += fmt::format(", window {}", block.window);
  if (block.experts.routed == 0) return text + fmt::format("; MLP of {}", block.ffn);
  text += fmt::format("; {} of {} experts of {}", block.experts.active, block.experts.routed,
                      block.experts.ffn);
  if (block.experts.shared_ffn > 0) text += fmt::format(" and {}", block.experts.shared_ffn);
  return text;
}

std::string NameOf(const std::vector<int>& equal) {
  constexpr size_t kLongest = 20;
  const std::string name = (equal.size() == 1 ? "block " : "blocks ") + FormatRanges(equal);
  if (name.size() <= kLongest) return name;
  return fmt::format("blocks {},{},..,{}", equal[0], equal[1], equal.back());
}

/// Equal blocks have the figures of one of them.
std::vector<std::string> Cells(const std::string& name, int64_t times, int64_t parameters,
                               const PartWork& work) {
  return {name,
          fmt::format("{}", times),
          fmt::format("{}", parameters),
          fmt::format("{}", work.parameters),
          FormatFlops(work.ForwardFlops()),
          FormatFlops(work.BackwardInputFlops()),
          FormatFlops(work.BackwardWeightFlops()),
          FormatFlops(work.RecomputedFlops()),
          FormatBytes(work.activation),
          FormatBytes(work.recompute_peak)};
}

std::string TableOf(const Described& described) {
  const auto& [model, sharding, count, work, precision, optimizer, states] = described;
  std::vector<std::vector<std::string>> rows = {
      {"part", "times", "parameters", "on the device", "F", "I", "W", "again", "kept", "peak"}};
  rows.push_back(Cells("embedding", 1, count.embedding, work.embedding));
  for (const std::vector<int>& equal : EqualBlocks(model)) {
    const auto at = static_cast<size_t>(equal[0]);
    rows.push_back(Cells(NameOf(equal), static_cast<int64_t>(equal.size()), count.blocks[at],
                         work.blocks[at]));
  }
  rows.push_back(Cells("head", 1, count.head, work.head));
  rows.push_back({"total", "", fmt::format("{}", count.Total()),
                  fmt::format("{}", work.Parameters()), FormatFlops(work.ForwardFlops()),
                  FormatFlops(work.BackwardInputFlops()), FormatFlops(work.BackwardWeightFlops()),
                  FormatFlops(work.RecomputedFlops()), FormatBytes(work.Activation())});
  return FormatTable(rows);
}

std::string Layout(const Sharding& sharding) {
  std::string text = fmt::format("{} of {}", Counted(sharding.sequences, "sequence"),
                                 Counted(sharding.tokens, "token"));
  const auto add = [&](int parts, const char* what) {
    if (parts > 1) text += fmt::format(", {} {}", what, parts);
  };
  add(sharding.tensor, "tensor");
  if (sharding.sequence_parallel) text += ", sequence parallel";
  add(sharding.context, "context");
  add(sharding.expert, "expert");
  return text + fmt::format(", {} attention, recompute {}, {} per number",
                            sharding.flash ? "flash" : "plain", RecomputeName(sharding.recompute),
                            Counted(sharding.bytes_per_number, "byte"));
}

/// Whether one is shorter than the sequence.
bool HasWindow(const Described& described) {
  const std::vector<Block>& blocks = described.model.blocks;
  return std::any_of(blocks.begin(), blocks.end(), [&](const Block& block) {
    return block.window > 0 && block.window < described.sharding.tokens;
  });
}

std::string TextOf(const Described& described) {
  const auto& [model, sharding, count, work, precision, optimizer, states] = described;
  std::string text = fmt::format("{} ({}): {}, hidden {}, vocabulary {}{}\n", model.name,
                                 model.architecture, Counted(model.layers(), "block"), model.hidden,
                                 model.vocabulary, model.tied ? ", tied head" : "");
  for (const std::vector<int>& equal : EqualBlocks(model)) {
    text += fmt::format("  {}: {}\n", NameOf(equal),
                        DescribeBlock(model.blocks[static_cast<size_t>(equal[0])]));
  }
  text += fmt::format("parameters: {}", count.Total());
  if (count.active != count.Total()) text += fmt::format(", {} active per token", count.active);
  if (count.prediction > 0) {
    text += fmt::format("; {} more that predict further tokens", count.prediction);
  }
  text += fmt::format(
      "\nmodel FLOPs per token, forward and backward: {} if every pair of tokens counts{}, {} if "
      "those the mask lets through do\n\none device's share of a micro-batch: {}\n\n",
      FormatFlops(PerToken(described, AttentionCount::kFull)),
      HasWindow(described) ? " as far as windows reach" : "",
      FormatFlops(PerToken(described, AttentionCount::kVisible)), Layout(sharding));
  text += TableOf(described);
  text += fmt::format(
      "weights {}, gradients {}, states of {} {} on the device in {}, if copies of it share none\n",
      FormatBytes(described.states.weights), FormatBytes(described.states.gradients),
      described.optimizer, FormatBytes(described.states.optimizer),
      PrecisionName(described.precision));
  return text +
         "(parameters of the network, and on the device; FLOPs of forward, of backward for input "
         "and for weight,\nand those done again; bytes kept for the backward, and beside them "
         "while it runs)\n";
}

int Run(const Arguments& arguments) {
  Described described;
  if (arguments.operands().empty()) {
    described.model = GptOf(arguments);
  } else {
    RefuseGiven(arguments, GptFlags(), "the operand says what the network is");
    described.model = ReadTransformer(arguments.operands()[0]);
  }
  described.sharding = ShardingOf(arguments, described.model);
  fmt::print(stderr, "{}", LongSequencesNote(described.model, described.sharding));
  described.count = CountParameters(described.model);
  described.work = WorkOf(described.model, described.sharding);
  if (arguments.Has("precision")) {
    described.precision = ParsePrecision(arguments.Text("precision"));
  }
  described.optimizer = arguments.TextOr("optimizer", "adamw");
  try {
    described.states = StatesOf(described);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf("optimizer"), error.what()));
  }
  if (WantsJson(arguments)) {
    fmt::print("{}\n", JsonOf(described).dump(2));
  } else {
    fmt::print("{}", TextOf(described));
  }
  return 0;
}

}  // namespace

Subcommand ModelCommand() {
  return {
      .name = "model",
      .operands = "[NAME|CONFIG]",
      .summary = "parameters, FLOPs and bytes of a network, part by part",
      .details =
          "NAME is one that 'pipelag list' shows, CONFIG a Hugging Face config.json or a folder "
          "that\nholds one. Without either, --layers, --hidden and --heads describe a GPT as "
          "Megatron-LM\ntrains it.\n\nExample: pipelag model Llama-3.1-8B --sequence 8192 "
          "--tensor 4 --sequence-parallel",
      .most_operands = 1,
      .flags = Concatenate(
          {GptFlags(),
           ShardingFlags(),
           {{"optimizer", "NAME", "whose states are counted (default: adamw)"}, FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
