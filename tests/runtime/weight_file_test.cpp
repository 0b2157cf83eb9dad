// Weights in the files of other tools: in and out again without a changed byte, and what does not
// fit refused by name.
#include "runtime/checkpoint/weight_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "models/error.h"
#include "models/file.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/reason.h"
#include "tests/runtime/scratch_folder.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr NetworkShape kShape{
    .layers = 2, .hidden = 4, .heads = 2, .sequence = 3, .vocabulary = 130};

/// llm.c's file of kShape, its floats numbered from 0 in the order in which they stand; padding is
/// zero.
std::string LlmcFile() {
  constexpr int kRows = 256;
  std::string content(1024, '\0');
  const std::vector<int32_t> numbers = {20240326, 3, 3, 130, 2, 2, 4, kRows};
  std::memcpy(content.data(), numbers.data(), numbers.size() * sizeof(int32_t));
  // wpe, then per layer: two norms of 2 · 4, 12 · 4 + 12, 16 + 4, 64 + 16, 64 + 4; the last norm.
  const int rest = 3 * 4 + 2 * (16 + 60 + 20 + 80 + 68) + 8;
  float number = 0;
  const auto put = [&](float value) {
    content.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (int i = 0; i < kRows * 4; ++i) put(i < 130 * 4 ? number++ : 0.0f);
  for (int i = 0; i < rest; ++i) put(number++);
  return content;
}

class WeightFile : public testing::Test {
 protected:
  std::filesystem::path Path(const std::string& name) const { return folder_.path() / name; }
  std::filesystem::path Written(const std::string& content) const {
    WriteFile(Path("model.bin"), content);
    return Path("model.bin");
  }
  std::string Refusal(const std::string& content, const NetworkShape& shape = kShape) const {
    return ReasonOf([&] { OpenWeights(Written(content), shape); });
  }

  ScratchFolder folder_;
};

/// A network in stages, with its weights.
struct Stages {
  Stages(const StartingPoint& start, const NetworkShape& shape, int stages) {
    for (const LayerRange& range : SplitLayers(shape.layers, stages)) {
      layouts.emplace_back(shape, range);
      weights.emplace_back(static_cast<size_t>(layouts.back().size()), 9.0f);
      start.ReadVersion(layouts.back(), 0, weights.back().data());
    }
  }
  std::vector<StageWeights> views() const {
    std::vector<StageWeights> views;
    for (size_t i = 0; i < layouts.size(); ++i) views.push_back({&layouts[i], weights[i].data()});
    return views;
  }
  float At(size_t stage, const char* name, int64_t element) const {
    return weights[stage][static_cast<size_t>(layouts[stage].Find(name).offset + element)];
  }

  std::vector<StageLayout> layouts;
  std::vector<std::vector<float>> weights;
};

TEST_F(WeightFile, OfLlmcGoesInAndOutByteForByte) {
  const std::string content = LlmcFile();
  const auto start = OpenWeights(Written(content), kShape);
  EXPECT_EQ(start->step(), 0);
  for (const int stages : {1, 2}) {
    const Stages network(*start, kShape, stages);
    ExportWeights(Path("again.bin"), kShape, network.views());
    EXPECT_TRUE(ReadFile(Path("again.bin")) == content) << stages;
  }
  const Stages two(*start, kShape, 2);
  EXPECT_EQ(two.At(0, "wte.weight", 5), 5);
  EXPECT_EQ(two.At(0, "wpe.weight", 0), 520);
  EXPECT_EQ(two.At(0, "h.0.ln_1.weight", 0), 532);
  EXPECT_EQ(two.At(1, "h.1.ln_1.weight", 0), 536);  // all layers of one tensor stand together
  EXPECT_EQ(two.At(0, "h.0.attn.c_attn.weight", 1), 549);
  EXPECT_EQ(two.At(1, "h.1.attn.c_attn.weight", 1), 549 + 48);
  EXPECT_EQ(two.At(1, "lm_head.weight", 519), 519);  // a copy of the embedding
}

TEST_F(WeightFile, WithANumberThatIsNoneIsRefused) {
  const auto start = OpenWeights(Written(LlmcFile()), kShape);
  Stages network(*start, kShape, 2);
  const int64_t head = network.layouts[1].Find("lm_head.weight").offset;
  network.weights[1][static_cast<size_t>(head + 3)] = std::numeric_limits<float>::quiet_NaN();
  ExportWeights(Path("out.safetensors"), kShape, network.views());
  const auto broken = OpenWeights(Path("out.safetensors"), kShape);
  EXPECT_THAT(ReasonOf([&] { Stages(*broken, kShape, 2); }),
              testing::AllOf(HasSubstr("out.safetensors: tensor lm_head.weight is nan at element "),
                             HasSubstr("3, but weights must be finite")));

  std::string content = LlmcFile();
  const float infinite = std::numeric_limits<float>::infinity();
  content.replace(1024 + 4 * 7, 4, reinterpret_cast<const char*>(&infinite), 4);
  const auto of_llmc = OpenWeights(Written(content), kShape);
  EXPECT_THAT(ReasonOf([&] { Stages(*of_llmc, kShape, 2); }),
              HasSubstr("model.bin: tensor wte.weight is inf at element 7"));
}

TEST_F(WeightFile, OfSafetensorsGoesInAndOut) {
  const auto start = OpenWeights(Written(LlmcFile()), kShape);
  Stages network(*start, kShape, 2);
  // A head of its own.
  network.weights[1][static_cast<size_t>(network.layouts[1].Find("lm_head.weight").offset)] = -1;
  ExportWeights(Path("out.safetensors"), kShape, network.views());
  const SafetensorsFile file(Path("out.safetensors"));
  EXPECT_EQ(file.At("transformer.h.1.mlp.c_fc.weight").shape, (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(Stages(*OpenWeights(Path("out.safetensors"), kShape), kShape, 2).weights,
            network.weights);
  EXPECT_THAT(ReasonOf([&] { ExportWeights(Path("out.bin"), kShape, network.views()); }),
              testing::AllOf(HasSubstr("out.bin"), HasSubstr("head is its own")));
  EXPECT_FALSE(std::filesystem::exists(Path("out.bin")));
}

TEST_F(WeightFile, CutShortLaterIsNamed) {
  const std::string content = LlmcFile();
  const std::filesystem::path file = Written(content);
  const auto start = OpenWeights(file, kShape);
  std::filesystem::resize_file(file, content.size() - 4);
  EXPECT_THAT(ReasonOf([&] { Stages(*start, kShape, 1); }),
              HasSubstr(file.string() + ": has been cut short"));
}

TEST_F(WeightFile, OfHuggingFaceMayLackPrefixAndHead) {
  const auto start = OpenWeights(Written(LlmcFile()), kShape);
  const Stages whole(*start, kShape, 1);
  ExportWeights(Path("out.safetensors"), kShape, whole.views());
  const SafetensorsFile out(Path("out.safetensors"));
  std::vector<std::vector<float>> values;
  std::vector<OutgoingTensor> tensors;
  for (const auto& [name, tensor] : out.tensors()) {
    if (name == "lm_head.weight") continue;
    values.emplace_back(static_cast<size_t>(tensor.elements()));
    out.Read(name, tensor.shape, false, values.back().data());
    tensors.push_back({.name = name.substr(name.find('.') + 1),
                       .type = "F32",
                       .shape = tensor.shape,
                       .values = values.back().data()});
  }
  WriteSafetensors(Path("bare.safetensors"), tensors, {});
  EXPECT_EQ(Stages(*OpenWeights(Path("bare.safetensors"), kShape), kShape, 1).weights,
            whole.weights);
  NetworkShape other = kShape;
  other.layers = 3;
  EXPECT_THAT(ReasonOf([&] { OpenWeights(Path("bare.safetensors"), other); }),
              HasSubstr("bare.safetensors: holds no tensor transformer.h.2.ln_1.weight"));
  other.layers = 1;
  EXPECT_THAT(ReasonOf([&] { OpenWeights(Path("bare.safetensors"), other); }),
              HasSubstr("h.1.ln_1.weight is of a layer"));
  other = kShape;
  other.vocabulary = 131;
  const auto opened = OpenWeights(Path("bare.safetensors"), other);
  EXPECT_THAT(ReasonOf([&] { Stages(*opened, other, 1); }), HasSubstr("tensor wte.weight is F32"));
}

TEST_F(WeightFile, OfMorePositionsGivesTheFirst) {
  NetworkShape shorter = kShape;
  shorter.sequence = 2;
  const std::filesystem::path bin = Written(LlmcFile());
  const Stages network(*OpenWeights(bin, shorter), shorter, 1);
  EXPECT_EQ(network.At(0, "wpe.weight", 7), 527);
  EXPECT_EQ(network.At(0, "h.0.ln_1.weight", 0), 532);
  ExportWeights(Path("long.safetensors"), kShape,
                Stages(*OpenWeights(bin, kShape), kShape, 1).views());
  EXPECT_EQ(Stages(*OpenWeights(Path("long.safetensors"), shorter), shorter, 1).weights,
            network.weights);
}

TEST_F(WeightFile, OfALlamaHasItsNamesAndNoOther) {
  NetworkShape llama = kShape;
  llama.norm = NormChoice::kRms;
  llama.positions = PositionChoice::kRotary;
  llama.mlp = MlpChoice::kSwiGlu;
  llama.key_value_heads = 1;
  llama.bias = false;
  const StageLayout layout(llama, {0, 2});
  std::vector<float> weights(static_cast<size_t>(layout.size()));
  InitialiseWeights(layout, llama, 5, weights.data());
  ExportWeights(Path("llama.safetensors"), llama, {{&layout, weights.data()}});
  const SafetensorsFile file(Path("llama.safetensors"));
  // As (outputs, inputs): Llama transposes nothing.
  EXPECT_EQ(file.At("model.layers.1.self_attn.k_proj.weight").shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(file.At("model.layers.0.mlp.down_proj.weight").shape, (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(file.tensors().size(), 2u * 9 + 3);
  EXPECT_EQ(Stages(*OpenWeights(Path("llama.safetensors"), llama), llama, 1).weights[0], weights);
  EXPECT_THAT(ReasonOf([&] { OpenWeights(Path("llama.safetensors"), kShape); }),
              HasSubstr("holds no tensor transformer.wte.weight"));

  const std::string traits = "RMSNorm, rotary positions, SwiGLU, shared key-value heads, no biases";
  EXPECT_THAT(ReasonOf([&] {
                ExportWeights(Path("out.bin"), llama, {{&layout, weights.data()}});
              }),
              HasSubstr("llm.c's format is of GPT-2s only, but this network has " + traits));
  EXPECT_THAT(Refusal(LlmcFile(), llama), HasSubstr(traits));
  NetworkShape bare = kShape;
  bare.bias = false;
  ExportWeights(Path("gpt.safetensors"), kShape,
                Stages(*OpenWeights(Written(LlmcFile()), kShape), kShape, 1).views());
  EXPECT_THAT(ReasonOf([&] { OpenWeights(Path("gpt.safetensors"), bare); }),
              HasSubstr("but the network has no biases"));
}

TEST_F(WeightFile, ThatDoesNotFitIsRefusedByName) {
  const std::string good = LlmcFile();
  EXPECT_EQ(Refusal(good), "");
  EXPECT_THAT(Refusal(good.substr(0, good.size() - 4)), HasSubstr("model.bin: has"));
  EXPECT_THAT(Refusal(good + "1234"), HasSubstr("its header promises"));
  EXPECT_THAT(Refusal(good.substr(0, 500)), HasSubstr("cut short within its header"));
  const auto with = [&](size_t number, int32_t value) {
    std::string changed = good;
    std::memcpy(changed.data() + 4 * number, &value, sizeof value);
    return changed;
  };
  EXPECT_THAT(Refusal(with(1, 5)), HasSubstr("bfloat16"));
  EXPECT_THAT(Refusal(with(1, 4)), HasSubstr("version 4"));
  EXPECT_THAT(Refusal(with(0, 7)), HasSubstr("no safetensors file"));
  EXPECT_THAT(Refusal(with(5, 3)), HasSubstr("do not fit together"));
  EXPECT_THAT(Refusal(with(7, 129)), HasSubstr("do not fit together"));
  EXPECT_THAT(Refusal(with(4, 0)), HasSubstr("no sizes"));
  EXPECT_THAT(Refusal(with(4, 9'000'000)), HasSubstr("its header promises more"));
  EXPECT_THAT(Refusal(""), HasSubstr("0 bytes hold no header"));
  NetworkShape other = kShape;
  other.sequence = 4;
  EXPECT_THAT(Refusal(good, other), HasSubstr("knows 3 positions, but a sequence has 4"));
  other = kShape;
  other.heads = 1;
  EXPECT_THAT(Refusal(good, other), HasSubstr("has 2 attention heads, but the network has 1"));
}

}  // namespace
}  // namespace pipelag
