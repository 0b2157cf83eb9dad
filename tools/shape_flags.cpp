#include "tools/shape_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/architecture/config.h"

namespace pipelag {
namespace {

constexpr std::string_view kRecomputations[] = {"none", "selective", "alternate", "full"};
constexpr std::string_view kAttentions[] = {"flash", "plain"};
constexpr std::string_view kLosses[] = {"plain", "in-place"};
constexpr std::string_view kPrecisions[] = {"bf16", "fp16", "fp8", "fp32", "tf32"};
constexpr int64_t kLongestByDefault = 4096;
constexpr int64_t kMostLayers = 100'000;

int CountOf(const Arguments& arguments, const std::string& name, int64_t otherwise,
            int64_t most = 10'000'000) {
  const int64_t count = arguments.CountOr(name, otherwise);
  if (count > most) {
    throw Error(fmt::format("{}: {} is more than {}", arguments.PlaceOf(name), count, most));
  }
  return static_cast<int>(count);
}

Recompute RecomputeOf(const Arguments& arguments) {
  if (!arguments.Has("recompute")) return Recompute::kNone;
  const std::string name = arguments.Choice("recompute", kRecomputations);
  return static_cast<Recompute>(
      std::find(std::begin(kRecomputations), std::end(kRecomputations), name) -
      std::begin(kRecomputations));
}

/// Products in 8 bits read copies: what is kept for the backward stays in 16.
int BytesPerNumber(const Arguments& arguments) {
  if (!arguments.Has("precision")) return 2;
  return arguments.Choice("precision", kPrecisions).ends_with("32") ? 4 : 2;
}

void RefuseExpertsOfDense(const Arguments& arguments, const Transformer& model) {
  const bool routed = std::any_of(model.blocks.begin(), model.blocks.end(),
                                  [](const Block& block) { return block.experts.routed > 0; });
  if (routed) return;
  for (const char* flag : {"expert", "expert-tensor", "expert-capacity"}) {
    if (!arguments.Has(flag) || arguments.Text(flag) == "1") continue;
    throw Error(fmt::format("{}: {} has no routed experts", arguments.PlaceOf(flag), model.name));
  }
}

double CapacityOf(const Arguments& arguments) {
  constexpr double kLeast = 0.001;
  constexpr double kMost = 1000;
  if (!arguments.Has("expert-capacity")) return 0;
  const double capacity = arguments.Decimal("expert-capacity");
  if (!(capacity >= kLeast && capacity <= kMost)) {
    throw Error(fmt::format("{}: '{}' is not a factor from {} to {}",
                            arguments.PlaceOf("expert-capacity"), arguments.Text("expert-capacity"),
                            kLeast, kMost));
  }
  return capacity;
}

}  // namespace

std::string_view RecomputeName(Recompute recompute) {
  return kRecomputations[static_cast<size_t>(recompute)];
}

std::vector<Flag> GptFlags() {
  return {
      {"layers", "COUNT", "blocks of a GPT that no file describes"},
      {"hidden", "COUNT", "its channels"},
      {"heads", "COUNT", "its attention heads"},
      {"key-value-heads", "COUNT", "of keys and values (default: as --heads)"},
      {"ffn", "COUNT", "inner size of its MLP (default: four times --hidden)"},
      {"vocabulary", "COUNT", "its vocabulary (default: 51200)"},
  };
}

Transformer GptOf(const Arguments& arguments) {
  for (const char* needed : {"layers", "hidden", "heads"}) {
    if (!arguments.Has(needed)) {
      throw Error(
          fmt::format("--{} is missing: a GPT by figures needs --layers, --hidden and "
                      "--heads",
                      needed));
    }
  }
  GptShape shape;
  shape.layers = CountOf(arguments, "layers", 0, kMostLayers);
  shape.hidden = CountOf(arguments, "hidden", 0);
  shape.heads = CountOf(arguments, "heads", 0);
  shape.key_value_heads = CountOf(arguments, "key-value-heads", shape.heads);
  shape.ffn = CountOf(arguments, "ffn", 4 * shape.hidden);
  shape.vocabulary = CountOf(arguments, "vocabulary", shape.vocabulary);
  shape.sequence = CountOf(arguments, "sequence", shape.sequence);
  try {
    return Gpt(shape);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf("heads"), error.what()));
  }
}

std::vector<Flag> ShardingFlags() {
  return {
      {"sequence", "COUNT",
       "tokens per sequence (default: as many as the model is made for, at most 4096)"},
      {"microbatch", "COUNT", "sequences per micro-batch (default: 1)"},
      {"tensor", "COUNT", "devices that share each block's matrices (default: 1)"},
      {"sequence-parallel", "", "norms and residuals cut along the sequence by --tensor",
       FlagValue::kNone},
      {"context", "COUNT", "parts each sequence is cut in (default: 1)"},
      {"expert", "COUNT", "devices that routed experts are spread over (default: 1)"},
      {"expert-tensor", "COUNT", "parts each routed expert is cut in (default: as --tensor)"},
      {"expert-capacity", "FACTOR",
       "tokens an expert takes per even share, padded (default: all, none padded)"},
      {"recompute", "none|selective|alternate|full",
       "what is computed again before the backward: selective the attention matrix, alternate all "
       "but attention's and every other product's result (default: none)"},
      {"attention", "flash|plain", "plain keeps the scores of every pair (default: flash)"},
      {"cross-entropy", "plain|in-place",
       "whether it overwrites the logits, as Megatron's does (default: plain)"},
      {"precision", "NAME", "bf16, fp16, fp8, fp32 or tf32 (default: bf16)"},
  };
}

Sharding ShardingOf(const Arguments& arguments, const Transformer& model) {
  RefuseExpertsOfDense(arguments, model);
  Sharding sharding;
  const int64_t made_for = model.context > 0 ? model.context : kLongestByDefault;
  sharding.tokens = CountOf(arguments, "sequence", std::min(made_for, kLongestByDefault));
  sharding.sequences = CountOf(arguments, "microbatch", 1);
  constexpr int64_t kMostTokens = 1'000'000'000;
  if (sharding.sequences * sharding.tokens > kMostTokens) {
    throw Error(fmt::format("{}: a micro-batch has {} tokens, more than {}",
                            arguments.PlaceOf("microbatch"), sharding.sequences * sharding.tokens,
                            kMostTokens));
  }
  sharding.tensor = CountOf(arguments, "tensor", 1);
  sharding.context = CountOf(arguments, "context", 1);
  sharding.expert = CountOf(arguments, "expert", 1);
  sharding.expert_tensor = CountOf(arguments, "expert-tensor", sharding.tensor);
  sharding.sequence_parallel = arguments.Has("sequence-parallel");
  sharding.recompute = RecomputeOf(arguments);
  sharding.flash =
      !arguments.Has("attention") || arguments.Choice("attention", kAttentions) == "flash";
  sharding.loss_in_place =
      arguments.Has("cross-entropy") && arguments.Choice("cross-entropy", kLosses) == "in-place";
  sharding.bytes_per_number = BytesPerNumber(arguments);
  sharding.capacity = CapacityOf(arguments);
  return sharding;
}

std::string LongSequencesNote(const Transformer& model, const Sharding& sharding) {
  if (model.context == 0 || sharding.tokens <= model.context) return "";
  return fmt::format("note: sequences of {} tokens are longer than the {} that {} is made for\n",
                     sharding.tokens, model.context, model.name);
}

}  // namespace pipelag
