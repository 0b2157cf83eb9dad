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

int CountOf(const Arguments& arguments, const std::string& name, int64_t otherwise) {
  constexpr int64_t kMost = 10'000'000;
  const int64_t count = arguments.CountOr(name, otherwise);
  if (count > kMost) {
    throw Error(fmt::format("{}: {} is more than {}", arguments.PlaceOf(name), count, kMost));
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
  shape.layers = CountOf(arguments, "layers", 0);
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
  Sharding sharding;
  const int64_t made_for = model.context > 0 ? model.context : kLongestByDefault;
  sharding.tokens = CountOf(arguments, "sequence", std::min(made_for, kLongestByDefault));
  sharding.sequences = CountOf(arguments, "microbatch", 1);
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
  if (arguments.Has("expert-capacity")) {
    sharding.capacity = arguments.Decimal("expert-capacity");
    if (!(sharding.capacity > 0)) {
      throw Error(fmt::format("{}: '{}' is not a positive factor",
                              arguments.PlaceOf("expert-capacity"),
                              arguments.Text("expert-capacity")));
    }
  }
  return sharding;
}

}  // namespace pipelag
