// The work of a network's parts against closed forms that others published, and what must hold for
// every shape and every way to divide it.
#include "models/architecture/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "models/architecture/config.h"
#include "models/error.h"
#include "tests/models/megatron.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

double Total(const std::vector<StageCollective>& collectives, CollectiveKind kind) {
  double bytes = 0;
  for (const StageCollective& collective : collectives) {
    if (collective.kind == kind) bytes += static_cast<double>(collective.bytes) * collective.count;
  }
  return bytes;
}

double Total(const std::vector<StageCollective>& collectives) {
  double bytes = 0;
  for (const StageCollective& collective : collectives) {
    bytes += static_cast<double>(collective.bytes) * collective.count;
  }
  return bytes;
}

struct GptCase {
  double layers, hidden, heads, vocabulary, tokens, sequences;
  Transformer model;
};

std::vector<GptCase> Gpts() {
  std::vector<GptCase> cases;
  for (const auto& [l, h, a, s, b] : std::vector<std::array<int64_t, 5>>{{2, 64, 4, 16, 1},
                                                                         {24, 2304, 24, 2048, 16},
                                                                         {48, 6144, 64, 2048, 4},
                                                                         {3, 96, 8, 48, 5}}) {
    cases.push_back({static_cast<double>(l), static_cast<double>(h), static_cast<double>(a), 51200,
                     static_cast<double>(s), static_cast<double>(b),
                     Gpt({.layers = l, .hidden = h, .heads = a, .sequence = s})});
  }
  return cases;
}

TEST(Work, OfAGptHasTheFlopsOfMegatronsFormulas) {
  for (const GptCase& gpt : Gpts()) {
    const auto [l, h, a, V, s, B, model] = gpt;
    Sharding sharding =
        Megatron(1, gpt.model.context == 0 ? 1 : static_cast<int64_t>(B), static_cast<int64_t>(s));
    sharding.recompute = Recompute::kFull;
    const PartWork block = BlockWork(model, model.blocks[0], sharding);
    const PartWork head = HeadWork(model, sharding);
    const auto all = [](const PartWork& part) {
      return part.ForwardFlops() + part.BackwardInputFlops() + part.BackwardWeightFlops() +
             part.RecomputedFlops();
    };
    // SC21 (arXiv 2104.04473), equation 3: with everything in the blocks recomputed.
    const double sc21 = 96 * B * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h));
    EXPECT_NEAR((l * all(block) + all(head)) / sc21, 1, 1e-12);
    // Korthikanti et al. (arXiv 2205.05198), equation 7: nothing recomputed.
    const double model_flops = 72 * B * l * s * h * h * (1 + s / (6 * h) + V / (12 * l * h));
    EXPECT_NEAR(
        ModelFlops(model, static_cast<int64_t>(B), static_cast<int64_t>(s), AttentionCount::kFull) /
            model_flops,
        1, 1e-12);
    // With the attention of one forward more.
    sharding.recompute = Recompute::kSelective;
    EXPECT_NEAR(BlockWork(model, model.blocks[0], sharding).RecomputedFlops() / (4 * B * s * s * h),
                1, 1e-12);
  }
}

TEST(Work, BackwardRepeatsProductsOncePerOperandThatHasAGradient) {
  const Transformer model = Gpt({.layers = 1, .hidden = 64, .heads = 4, .sequence = 32});
  const PartWork block = BlockWork(model, model.blocks[0], Megatron(1, 2, 32));
  const double attention = 4.0 * 2 * 32 * 32 * 64;
  const double weights = 24.0 * 2 * 32 * 64 * 64;
  EXPECT_EQ(block.ForwardFlops(), weights + attention);
  EXPECT_EQ(block.BackwardInputFlops(), weights + 2 * attention);
  EXPECT_EQ(block.BackwardWeightFlops(), weights);
  EXPECT_EQ(block.RecomputedFlops(), 0);
}

TEST(Work, OfFlashAttentionIsWhatTheMaskLeaves) {
  Transformer model = Gpt({.layers = 1, .hidden = 64, .heads = 4, .sequence = 32});
  Sharding sharding = Megatron(1, 3, 32);
  const double whole = BlockWork(model, model.blocks[0], sharding).ForwardFlops();
  sharding.flash = true;
  const auto attention = [&] {
    const double pairs = 4.0 * 3 * 64;
    const double weights = whole - pairs * 32 * 32;
    return (BlockWork(model, model.blocks[0], sharding).ForwardFlops() - weights) / pairs;
  };
  EXPECT_NEAR(attention(), 32 * 33 / 2, 1e-6);
  model.blocks[0].window = 1;
  EXPECT_NEAR(attention(), 32, 1e-6);
  model.blocks[0].window = 3;
  EXPECT_NEAR(attention(), 1 + 2 + 30 * 3, 1e-6);
  model.blocks[0].window = 32;
  EXPECT_NEAR(attention(), 32 * 33 / 2, 1e-6);
  model.blocks[0].window = 0;
  const PartWork block = BlockWork(model, model.blocks[0], sharding);
  EXPECT_NEAR(block.RecomputedFlops(), 2.0 * 3 * 64 * 32 * 33 / 2, 1e-6) << "scores, once more";
  EXPECT_LT(ModelFlops(model, 3, 32, AttentionCount::kVisible),
            ModelFlops(model, 3, 32, AttentionCount::kFull));
}

TEST(Work, CountsNoKeysBeyondTheWindow) {
  Transformer model = Gpt({.layers = 3, .hidden = 64, .heads = 4, .sequence = 64});
  const auto full = [&] { return ModelFlops(model, 2, 64, AttentionCount::kFull); };
  const double whole = full();
  for (const int64_t window : {1, 2, 7, 32, 63, 64, 100}) {
    model.blocks[1].window = window;  // one of the three
    const double beyond = 64.0 - static_cast<double>(std::min<int64_t>(window, 64));
    // Forward and backward, 4 FLOPs per pair and number of a query.
    EXPECT_NEAR(whole - full(), 3 * 4.0 * 2 * 64 * 64 * beyond, 1e-3) << window;
    EXPECT_LE(ModelFlops(model, 2, 64, AttentionCount::kVisible), full()) << window;
  }
  // Whole batches and sequences of millions of tokens are no more than numbers.
  EXPECT_NEAR(ModelFlops(model, 100'000, 1 << 22, AttentionCount::kFull) /
                  (100e3 * ModelFlops(model, 1, 1 << 22, AttentionCount::kFull)),
              1, 1e-12);
  // Beyond the window a token costs the same in any sequence.
  for (Block& block : model.blocks) block.window = 16;
  EXPECT_NEAR(ModelFlopsPerToken(model, 64, AttentionCount::kFull),
              ModelFlopsPerToken(model, 4096, AttentionCount::kFull), 1e-3);
}

TEST(Work, OfAGptKeepsTheBytesOfKorthikantisTable2) {
  for (const GptCase& gpt : Gpts()) {
    const auto [l, h, a, V, s, b, model] = gpt;
    for (const int t : {1, 2, 4}) {
      const double sbh = s * b * h;
      const double matrix = 5 * a * s / h;
      Sharding sharding = Megatron(t, static_cast<int64_t>(b), static_cast<int64_t>(s));
      const auto kept = [&](bool sequence_parallel, Recompute recompute) {
        sharding.sequence_parallel = sequence_parallel;
        sharding.recompute = recompute;
        return static_cast<double>(BlockWork(model, model.blocks[0], sharding).activation);
      };
      EXPECT_DOUBLE_EQ(kept(false, Recompute::kNone), sbh * (10 + 24.0 / t + matrix / t));
      EXPECT_DOUBLE_EQ(kept(true, Recompute::kNone), sbh / t * (34 + matrix));
      EXPECT_EQ(kept(false, Recompute::kSelective), sbh * (10 + 24.0 / t));
      EXPECT_EQ(kept(true, Recompute::kSelective), 34 * sbh / t);
      EXPECT_EQ(kept(false, Recompute::kFull), 2 * sbh);
      // Zero Bubble (arXiv 2401.10241), table 1: what W needs.
      sharding.recompute = Recompute::kNone;
      sharding.sequence_parallel = false;
      const PartWork block = BlockWork(model, model.blocks[0], sharding);
      EXPECT_EQ(static_cast<double>(block.held_for_weight), sbh * (8 + 24.0 / t));
      // Section 4.3: dropout behind the embedding; norm, product and logits of the head.
      EXPECT_EQ(static_cast<double>(EmbeddingWork(model, sharding).activation), sbh);
      sharding.sequence_parallel = true;
      EXPECT_EQ(static_cast<double>(EmbeddingWork(model, sharding).activation), sbh / t);
      EXPECT_EQ(static_cast<double>(HeadWork(model, sharding).activation),
                4 * sbh / t * (1 + V / h));
    }
  }
}

TEST(Work, SendsWhatMegatronSends) {
  const Transformer model = Gpt({.layers = 1, .hidden = 64, .heads = 4, .sequence = 32});
  Sharding sharding = Megatron(4, 2, 32);
  const double vector = 2.0 * 2 * 32 * 64;
  PartWork block = BlockWork(model, model.blocks[0], sharding);
  EXPECT_EQ(Total(block.collectives_forward), 2 * vector);
  EXPECT_EQ(Total(block.collectives_forward, CollectiveKind::kAllReduce), 2 * vector);
  EXPECT_EQ(Total(block.collectives_backward, CollectiveKind::kAllReduce), 2 * vector);
  EXPECT_TRUE(block.collectives_recomputed.empty());
  sharding.sequence_parallel = true;
  sharding.recompute = Recompute::kFull;
  block = BlockWork(model, model.blocks[0], sharding);
  for (const auto* collectives :
       {&block.collectives_forward, &block.collectives_backward, &block.collectives_recomputed}) {
    EXPECT_EQ(Total(*collectives, CollectiveKind::kAllGather), 2 * vector);
    EXPECT_EQ(Total(*collectives, CollectiveKind::kReduceScatter), 2 * vector);
    EXPECT_EQ(Total(*collectives), 4 * vector);
  }
  sharding.tensor = 1;
  EXPECT_TRUE(BlockWork(model, model.blocks[0], sharding).collectives_forward.empty());
}

TEST(Work, PassesKeysAndValuesAroundTheContextRing) {
  const Transformer model = ReadTransformer("Llama-3.1-8B");
  Sharding sharding;
  sharding.context = 4;
  sharding.tensor = 2;
  sharding.tokens = 8192;
  const PartWork block = BlockWork(model, model.blocks[0], sharding);
  const double sent = 3 * 2.0 * 2 * (8.0 / 2) * 128 * (8192.0 / 4);
  EXPECT_EQ(Total(block.collectives_forward, CollectiveKind::kRing), sent);
  EXPECT_EQ(Total(block.collectives_backward, CollectiveKind::kRing), 2 * sent);
}

TEST(Work, SendsTokensToTheirExpertsAndBack) {
  const Transformer model = ReadTransformer("Mixtral-8x7B");
  Sharding sharding;
  sharding.tokens = 4096;
  const double all = BlockWork(model, model.blocks[0], sharding).ForwardFlops();
  EXPECT_EQ(BlockWork(model, model.blocks[0], sharding).collectives_forward.size(), 0U);
  sharding.expert = 4;
  const PartWork block = BlockWork(model, model.blocks[0], sharding);
  EXPECT_EQ(Total(block.collectives_forward, CollectiveKind::kAllToAll),
            2 * (4096.0 * 2 * 4096 * 2) * 3 / 4);
  EXPECT_DOUBLE_EQ(block.ForwardFlops(), all) << "each device computes as many tokens as it sends";
  EXPECT_EQ(block.expert_parameters, 2 * 3 * 4096LL * 14336);
  sharding.capacity = 1.25;
  const double router = 2.0 * 4096 * 4096 * 8;
  const double experts = 2.0 * 4096 * 2 * 3 * 4096 * 14336;
  EXPECT_NEAR(BlockWork(model, model.blocks[0], sharding).ForwardFlops(), all + 0.25 * experts,
              1e3);
  EXPECT_GT(all, router + experts);
}

/// Megatron cuts experts by `tensor`, or spreads them whole over it.
TEST(Work, OfExpertsIsTheSameWhicheverWayTheyAreCut) {
  const Transformer model = ReadTransformer("Qwen3-30B-A3B");
  Sharding sharding;
  sharding.tokens = 4096;
  sharding.tensor = 4;
  sharding.expert = 8;
  sharding.sequence_parallel = true;
  const PartWork cut = BlockWork(model, model.blocks[0], sharding);
  sharding.expert_tensor = 1;
  const PartWork whole = BlockWork(model, model.blocks[0], sharding);
  EXPECT_NEAR(cut.ForwardFlops() / whole.ForwardFlops(), 1, 1e-12);
  EXPECT_EQ(cut.expert_parameters * 4, whole.expert_parameters);
  EXPECT_LT(Total(whole.collectives_forward), Total(cut.collectives_forward));
  sharding.sequence_parallel = false;
  EXPECT_THROW(BlockWork(model, model.blocks[0], sharding), Error);
}

TEST(Work, HoldsTheParametersThatTheShapeHas) {
  for (const TransformerPreset& preset : TransformerPresets()) {
    const Transformer model = ReadTransformer(std::string(preset.name));
    const ParameterCount count = CountParameters(model);
    Sharding sharding;
    sharding.tokens = 64;
    for (size_t i = 0; i < model.blocks.size(); ++i) {
      if (i > 0 && model.blocks[i] == model.blocks[i - 1]) continue;
      EXPECT_EQ(BlockWork(model, model.blocks[i], sharding).parameters, count.blocks[i])
          << preset.name;
    }
    EXPECT_EQ(EmbeddingWork(model, sharding).parameters, count.embedding) << preset.name;
    Transformer untied = model;
    untied.tied = false;
    EXPECT_EQ(HeadWork(model, sharding).parameters, CountParameters(untied).head) << preset.name;
  }
}

/// Shapes of every kind, small.
std::vector<Transformer> Shapes() {
  std::vector<Transformer> shapes;
  for (const char* name :
       {"gpt2", "Llama-3.1-8B", "Mixtral-8x7B", "Qwen3-8B", "Qwen3-30B-A3B", "DeepSeek-V3",
        "gpt-oss-20b", "gemma-2-9b", "bloom", "OLMo-2-7B", "falcon-40b", "opt-350m"}) {
    shapes.push_back(ReadTransformer(name));
  }
  return shapes;
}

TEST(Work, KeepsEveryOtherProductIfAskedTo) {
  const Transformer model = ReadTransformer("Llama-3.1-8B");
  Sharding sharding;
  sharding.tokens = 8192;
  sharding.sequences = 2;
  const PartWork none = BlockWork(model, model.blocks[0], sharding);
  sharding.recompute = Recompute::kAlternate;
  const PartWork alternate = BlockWork(model, model.blocks[0], sharding);
  // The block's input; of q, k, v, attention, o, gate, up, down all but k, o and up; the sums.
  const int64_t numbers = 4096 + 4096 + 1024 + 4096 + 14336 + 4096;
  EXPECT_EQ(alternate.activation, 16384 * (2 * numbers + 4 * 32));
  EXPECT_DOUBLE_EQ(alternate.RecomputedFlops() - none.RecomputedFlops(),
                   2.0 * 16384 * 4096 * (1024 + 4096 + 14336));
  for (const Transformer& shape : Shapes()) {
    const Block& block = shape.blocks.back();
    sharding.tokens = 512;
    const auto kept = [&](Recompute recompute) {
      sharding.recompute = recompute;
      return BlockWork(shape, block, sharding).activation;
    };
    EXPECT_LT(kept(Recompute::kAlternate), kept(Recompute::kNone)) << shape.name;
    EXPECT_LT(kept(Recompute::kFull), kept(Recompute::kAlternate)) << shape.name;
  }
}

TEST(Work, OfAllDevicesTogetherIsThatOfOne) {
  for (const Transformer& model : Shapes()) {
    const Block& block = model.blocks.back();
    Sharding one;
    one.tokens = 1024;
    one.sequences = 3;
    one.sequence_parallel = true;
    const PartWork whole = BlockWork(model, block, one);
    for (const int tensor : {1, 2, 4}) {
      if (block.heads % tensor != 0) continue;
      for (const int context : {1, 2, 8}) {
        for (const bool flash : {false, true}) {
          Sharding cut = one;
          cut.tensor = tensor;
          cut.context = context;
          one.flash = cut.flash = flash;
          const PartWork part = BlockWork(model, block, cut);
          const double devices = tensor * context;
          EXPECT_NEAR(devices * part.ForwardFlops() / BlockWork(model, block, one).ForwardFlops(),
                      1, 1e-9)
              << model.name;
          EXPECT_GE(tensor * part.parameters, whole.parameters);
          EXPECT_NEAR(devices * static_cast<double>(part.passes_forward) /
                          static_cast<double>(BlockWork(model, block, one).passes_forward),
                      1, 1e-6)
              << model.name;
          // Of gathered tokens, each device that has a part of an expert keeps all.
          if (block.experts.routed > 0 && tensor > 1) continue;
          EXPECT_NEAR(devices * static_cast<double>(part.activation),
                      static_cast<double>(BlockWork(model, block, one).activation), 1)
              << model.name << ' ' << tensor << ' ' << context;
        }
      }
    }
  }
}

TEST(Work, GrowsWithTokensAndShrinksWithDevices) {
  for (const Transformer& model : Shapes()) {
    const Block& block = model.blocks.back();
    Sharding sharding;
    sharding.tokens = 512;
    const PartWork small = BlockWork(model, block, sharding);
    sharding.tokens = 1024;
    const PartWork large = BlockWork(model, block, sharding);
    EXPECT_GE(large.ForwardFlops(), 2 * small.ForwardFlops());
    EXPECT_EQ(large.activation, 2 * small.activation) << "flash attention is linear";
    sharding.sequences = 2;
    EXPECT_DOUBLE_EQ(BlockWork(model, block, sharding).ForwardFlops(), 2 * large.ForwardFlops());
    sharding.flash = false;
    const PartWork kept = BlockWork(model, block, sharding);
    EXPECT_GT(kept.activation, 2 * large.activation);
    EXPECT_GE(kept.ForwardFlops(), 2 * large.ForwardFlops());
    Bytes before = kept.activation;
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      sharding.recompute = recompute;
      const PartWork less = BlockWork(model, block, sharding);
      EXPECT_LT(less.activation, before);
      EXPECT_EQ(less.activation + less.recompute_peak, kept.activation + kept.recompute_peak);
      EXPECT_GT(less.RecomputedFlops(), 0);
      EXPECT_EQ(less.ForwardFlops(), kept.ForwardFlops());
      before = less.activation;
    }
    EXPECT_EQ(BlockWork(model, block, sharding).RecomputedFlops(), kept.ForwardFlops());
  }
}

std::string Complaint(const Transformer& model, const Sharding& sharding) {
  try {
    BlockWork(model, model.blocks.back(), sharding);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Work, ThatDoesNotDivideIsRefused) {
  const Transformer llama = ReadTransformer("Llama-3.1-8B");
  Sharding sharding;
  sharding.tensor = 3;
  EXPECT_EQ(Complaint(llama, sharding), "tensor parallelism of 3 does not divide 32 heads");
  sharding.tensor = 16;
  EXPECT_EQ(Complaint(llama, sharding), "") << "the 8 heads of keys are held twice";
  sharding.tensor = 1;
  sharding.context = 3;
  EXPECT_EQ(Complaint(llama, sharding),
            "context parallelism of 3 does not divide 1024 tokens of a sequence");
  sharding.context = 1;
  sharding.tensor = 4;
  sharding.sequence_parallel = true;
  sharding.tokens = 1022;
  EXPECT_THAT(Complaint(llama, sharding), HasSubstr("sequence parallelism of 4"));
  sharding = Sharding{};
  sharding.expert = 3;
  EXPECT_EQ(Complaint(ReadTransformer("Mixtral-8x7B"), sharding),
            "expert parallelism of 3 does not divide 8 routed experts");
  sharding.expert = 1;
  sharding.tensor = 0;
  EXPECT_EQ(Complaint(llama, sharding), "tensor parallelism must be at least 1, not 0");
}

}  // namespace
}  // namespace pipelag
