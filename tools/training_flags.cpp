// The flags that say what to train: network, data, optimizer. Must not know how it is run.
#include "tools/training_flags.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "runtime/data/grammar.h"
#include "tools/checkpoint_flags.h"
#include "tools/failure.h"
#include "tools/flags.h"
#include "tools/network_flags.h"

namespace pipelag {
namespace {

int SmallCount(const Arguments& arguments, const std::string& name, int otherwise) {
  constexpr int64_t kMost = 1'000'000;
  const int64_t value = arguments.CountOr(name, otherwise);
  if (value > kMost) {
    throw Error(fmt::format("{}: {} is more than {}", arguments.PlaceOf(name), value, kMost));
  }
  return static_cast<int>(value);
}

std::optional<float> Fraction(const Arguments& arguments, const std::string& name, double least,
                              double most) {
  if (!arguments.Has(name)) return std::nullopt;
  const double value = arguments.Decimal(name);
  if (!(value >= least) || !(value <= most)) {
    throw Error(fmt::format("{}: '{}' is not between {} and {}", arguments.PlaceOf(name),
                            arguments.Text(name), least, most));
  }
  return static_cast<float>(value);
}

Recompute RecomputeOf(const Arguments& arguments) {
  constexpr std::string_view kKnown[] = {"none", "selective", "full"};
  if (!arguments.Has("recompute")) return Recompute::kNone;
  const std::string name = arguments.Choice("recompute", kKnown);
  if (name == "selective") return Recompute::kSelective;
  return name == "full" ? Recompute::kFull : Recompute::kNone;
}

ProductPrecision PrecisionOf(const Arguments& arguments) {
  constexpr std::string_view kKnown[] = {"fp32", "bf16"};
  if (!arguments.Has("precision") || arguments.Choice("precision", kKnown) == kKnown[0]) {
    return ProductPrecision::kFp32;
  }
  if (arguments.Has("backend") && arguments.Text("backend") == "cuda") {
    return ProductPrecision::kFp32;  // of what this processor multiplies
  }
  try {
    CheckPrecision(ProductPrecision::kBf16);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf("precision"), error.what()));
  }
  return ProductPrecision::kBf16;
}

}  // namespace

std::vector<LayerRange> SplitOf(const Arguments& arguments, int layers, int stages) {
  const std::string text = arguments.Has("split") ? arguments.Texts("split").front() : "even";
  if (text == "even") {
    if (stages <= layers) return SplitLayers(layers, stages);
    throw Error(fmt::format("{}: {} stages cannot share {} layers: every stage needs at least one",
                            arguments.PlaceOf("layers"), stages, layers));
  }
  if (text == "auto") {
    throw Error(fmt::format("{}: auto needs the times of layers, as --profile or --layer-times",
                            arguments.PlaceOf("split")));
  }
  const std::vector<int> counts = arguments.SmallNumbers("split");
  if (static_cast<int>(counts.size()) != stages) {
    throw Error(fmt::format("{}: names {} stages, but there are {}", arguments.PlaceOf("split"),
                            counts.size(), stages));
  }
  try {
    return SplitLayers(layers, counts);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf("split"), error.what()));
  }
}

std::vector<Flag> CommonTrainingFlags() {
  std::vector<Flag> flags = {
      {"layers", "COUNT", "transformer layers (default: 4)"},
      {"hidden", "COUNT", "channels (default: 128)"},
      {"heads", "COUNT", "attention heads (default: 4)"},
      {"key-value-heads", "COUNT", "of keys and values (default: as --heads)"},
      {"ffn", "COUNT",
       "inner size of the MLP (default: four times --hidden; with swiglu 8/3, rounded up to a "
       "multiple of 8)"},
      {"sequence", "COUNT", "tokens per sequence (default: 64)"},
      {"microbatch-size", "COUNT", "sequences per micro-batch (default: 4)"},
      {"recompute", "none|selective|full",
       "what the backward computes again instead of keeping it: norms, attention matrix and "
       "activation function, or all but the inputs of blocks (default: none)"},
      {"precision", "fp32|bf16",
       "of the linear layers' products; weights, gradients and optimizer are fp32 in either "
       "(default: fp32; on GPUs bf16, of activations and messages too)"},
      {"split", "even|COUNT[,COUNT...]", "layers of each stage (default: even)"},
      {"vocabulary", "COUNT", "tokens there are, 50257 for GPT-2's (default: 256, for bytes)"},
      {"data", "FILE[,FILE...]",
       "texts, taken as bytes, or .bin files of 16-bit tokens, nanoGPT's or llm.c's: the first "
       "90 % to train on, the rest to validate (default: a generated text of known entropy)"},
      {"validation-data", "FILE[,FILE...]", "validate on these, train on all of --data"},
      {"warmup-steps", "COUNT", "steps of linear warm-up (default: a tenth of the run)"},
      {"momentum", "FRACTION", "of sgd and muon (default: the optimizer's own)"},
      {"weight-decay", "RATE", "decoupled, not on vectors (default: the optimizer's own)"},
      {"muon-aux-learning-rate", "RATE",
       "peak for what muon and normuon leave to AdamW: embeddings, head, vectors (default: the "
       "learning rate)"},
      {"correction-strength", "FACTOR",
       "of error-feedback and dc-asgd (default: the correction's own)"},
      {"validation-microbatches", "COUNT",
       "micro-batches, evenly spaced, that the validation loss is taken over (default: 32)"},
  };
  return Concatenate({std::move(flags), NetworkKindFlags()});
}

std::vector<Flag> TrainingFlags() {
  std::vector<Flag> flags = CommonTrainingFlags();
  flags.insert(
      flags.end(),
      {{"optimizer", "NAME", fmt::format("{} (default: adamw)", fmt::join(OptimizerNames(), ", "))},
       {"learning-rate", "RATE", "its peak (default: 0.002)"},
       {"correction", "NAME",
        fmt::format("of late gradients: {} (default: none)", fmt::join(CorrectionNames(), ", "))},
       {"seed", "NUMBER", "of the weights and the order of the data (default: 1)"},
       {"deadline", "TIME", "longest wait of a rank for another (default: 120s)"}});
  return flags;
}

TrainingOptions CommonTrainingOf(const Arguments& arguments, int stages, int64_t steps) {
  TrainingOptions options;
  options.shape.layers = SmallCount(arguments, "layers", 4);
  options.shape.hidden = SmallCount(arguments, "hidden", 128);
  options.shape.heads = SmallCount(arguments, "heads", 4);
  options.shape.sequence = SmallCount(arguments, "sequence", 64);
  options.shape.vocabulary = SmallCount(arguments, "vocabulary", 256);
  TakeNetworkKind(arguments, options.shape);
  TakeShapeOfInit(arguments, options.shape);
  CheckShape(options.shape);
  options.recompute = RecomputeOf(arguments);
  options.precision = PrecisionOf(arguments);
  options.microbatch_size = SmallCount(arguments, "microbatch-size", 4);
  options.split = SplitOf(arguments, options.shape.layers, stages);
  options.optimizer.momentum = Fraction(arguments, "momentum", 0.0, 1.0);
  options.optimizer.weight_decay = Fraction(arguments, "weight-decay", 0.0, 1e6);
  options.optimizer.muon_aux_learning_rate =
      Fraction(arguments, "muon-aux-learning-rate", 0.0, 1e6);
  options.correction.strength = Fraction(arguments, "correction-strength", 0.0, 1e6);
  options.learning_rate.warmup_updates = arguments.NumberOr("warmup-steps", steps / 10);
  options.learning_rate.total_updates = steps;
  if (arguments.Has("clip-norm")) {
    if (!arguments.HasValue("clip-norm")) {
      throw Error(fmt::format("{}: a norm is missing", arguments.PlaceOf("clip-norm")));
    }
    options.clip_norm = arguments.Decimal("clip-norm");
    // Below it the factor that gradients are multiplied with is no number.
    constexpr double kLeast = std::numeric_limits<float>::min();
    if (!(*options.clip_norm >= kLeast)) {
      throw Error(fmt::format("{}: '{}' is not a norm of at least {:.3g}",
                              arguments.PlaceOf("clip-norm"), arguments.Text("clip-norm"), kLeast));
    }
  }
  options.validation_microbatches = arguments.CountOr("validation-microbatches", 32);
  return options;
}

void CheckOptimizer(const Arguments& arguments, const TrainingOptions& options) {
  const StageLayout layout(options.shape, options.split.front());
  const auto check = [&](const char* flag, const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", arguments.PlaceOf(flag), error.what()));
    }
  };
  check("optimizer", [&] { MakeOptimizer(options.optimizer, layout); });
  check("correction",
        [&] { MakeCorrected(options.optimizer, options.correction, layout, StageDelay{}); });
}

TrainingOptions TrainingOf(const Arguments& arguments, int stages, int64_t steps) {
  TrainingOptions options = CommonTrainingOf(arguments, stages, steps);
  options.seed = static_cast<uint64_t>(arguments.NumberOr("seed", 1));
  options.optimizer.name = arguments.TextOr("optimizer", "adamw");
  options.optimizer.learning_rate = Fraction(arguments, "learning-rate", 0.0, 1e6).value_or(0.002f);
  options.correction.name = arguments.TextOr("correction", "none");
  options.learning_rate.peak = options.optimizer.learning_rate;
  if (arguments.Has("deadline")) options.deadline = arguments.Duration("deadline");
  options.end_overdue = EndProcess;
  CheckOptimizer(arguments, options);
  return options;
}

Corpus CorpusOf(const Arguments& arguments, const TrainingOptions& options) {
  if (!arguments.Has("data")) {
    if (arguments.Has("validation-data")) {
      throw Error(fmt::format("{}: needs --data", arguments.PlaceOf("validation-data")));
    }
    Corpus grammar = GrammarCorpus(1, options.shape.sequence);
    grammar.train.LimitTo(options.shape.vocabulary);
    return grammar;
  }
  const std::vector<std::string> validation = arguments.Has("validation-data")
                                                  ? arguments.Texts("validation-data")
                                                  : std::vector<std::string>();
  Corpus corpus = LoadCorpus(arguments.Texts("data"), validation, options.shape.sequence);
  corpus.train.LimitTo(options.shape.vocabulary);
  corpus.validation.LimitTo(options.shape.vocabulary);
  return corpus;
}

}  // namespace pipelag
