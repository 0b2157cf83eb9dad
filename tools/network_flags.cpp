#include "tools/network_flags.h"

#include <fmt/format.h>

namespace pipelag {
namespace {

constexpr std::string_view kNorms[] = {"layer", "rms"};
constexpr std::string_view kPositions[] = {"learned", "rotary"};
constexpr std::string_view kMlps[] = {"gelu", "swiglu"};

int SizeOr(const Arguments& arguments, const char* name, int otherwise) {
  constexpr int64_t kMost = 1'000'000;
  const int64_t value = arguments.CountOr(name, otherwise);
  if (value > kMost) {
    throw Error(fmt::format("{}: {} is more than {}", arguments.PlaceOf(name), value, kMost));
  }
  return static_cast<int>(value);
}

bool Chosen(const Arguments& arguments, const char* name, std::span<const std::string_view> known) {
  return arguments.Has(name) && arguments.Choice(name, known) == known[1];
}

}  // namespace

std::vector<Flag> NetworkKindFlags() {
  return {
      {"norm", "layer|rms", "of the trained network: LayerNorm or RMSNorm (default: layer)"},
      {"positions", "learned|rotary",
       "an embedding per position, or queries and keys rotated (default: learned)"},
      {"mlp", "gelu|swiglu", "with two matrices, or gated, with three (default: gelu)"},
      {"no-bias", "", "no biases and no shifts in norms", FlagValue::kNone},
      TiedFlag(),
  };
}

Flag TiedFlag() {
  return {"tied", "",
          "the head's matrix is the token embedding: first and last stage exchange its gradients "
          "before every update",
          FlagValue::kNone};
}

void TakeNetworkKind(const Arguments& arguments, NetworkShape& shape) {
  if (Chosen(arguments, "norm", kNorms)) shape.norm = NormChoice::kRms;
  if (Chosen(arguments, "positions", kPositions)) shape.positions = PositionChoice::kRotary;
  if (Chosen(arguments, "mlp", kMlps)) shape.mlp = MlpChoice::kSwiGlu;
  shape.ffn = SizeOr(arguments, "ffn", 0);
  shape.key_value_heads = SizeOr(arguments, "key-value-heads", 0);
  shape.bias = !arguments.Has("no-bias");
  shape.tied = arguments.Has("tied");
}

}  // namespace pipelag
