#include "runtime/checkpoint/weight_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "models/error.h"
#include "models/file.h"
#include "models/input_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/tensor_names.h"

namespace pipelag {
namespace {

constexpr int32_t kMagic = 20240326;
constexpr int32_t kFloat32 = 3;
constexpr int32_t kBfloat16 = 5;
constexpr int64_t kHeaderNumbers = 256;
constexpr int64_t kHeaderBytes = kHeaderNumbers * 4;
constexpr int kPaddedTo = 128;
constexpr const char* kTokenEmbedding = "wte.weight";
constexpr const char* kPositionEmbedding = "wpe.weight";
constexpr const char* kHead = "lm_head.weight";

/// Tensors of a layer in llm.c's order.
constexpr std::array<const char*, 12> kLayerTensors = {
    "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
    "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
    "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};

/// All tensors of llm.c's file in its order: name, and elements there.
std::vector<std::pair<std::string, int64_t>> LlmcOrder(const LlmcHeader& header) {
  const StageLayout layout(header.shape, {0, header.shape.layers});
  const int64_t channels = header.shape.hidden;
  std::vector<std::pair<std::string, int64_t>> order = {
      {kTokenEmbedding, header.embedding_rows * channels},
      {kPositionEmbedding, header.shape.sequence * channels}};
  for (const char* tensor : kLayerTensors) {
    for (int layer = 0; layer < header.shape.layers; ++layer) {
      std::string name = fmt::format("h.{}.{}", layer, tensor);
      const int64_t elements = layout.Find(name).elements();
      order.emplace_back(std::move(name), elements);
    }
  }
  order.emplace_back("ln_f.weight", channels);
  order.emplace_back("ln_f.bias", channels);
  return order;
}

/// llm.c knows no other networks.
void RefuseUnlikeGpt2(const std::filesystem::path& file, const NetworkShape& shape) {
  if (IsGpt2(shape)) return;
  throw Error(fmt::format("{}: llm.c's format is of GPT-2s only, but this network has {}",
                          file.string(), UnlikeGpt2(shape)));
}

void CheckSame(const std::filesystem::path& file, const char* what, int there, int here) {
  if (there == here) return;
  throw Error(
      fmt::format("{}: has {} {}, but the network has {}", file.string(), there, what, here));
}

void CheckPositions(const std::filesystem::path& file, int64_t there, int here) {
  if (there >= here) return;
  throw Error(
      fmt::format("{}: knows {} positions, but a sequence has {}", file.string(), there, here));
}

void CheckFinite(const std::filesystem::path& file, const std::string& tensor,
                 std::span<const float> values) {
  const auto wrong = std::find_if_not(values.begin(), values.end(),
                                      [](float value) { return std::isfinite(value); });
  if (wrong == values.end()) return;
  throw Error(fmt::format("{}: tensor {} is {} at element {}, but weights must be finite",
                          file.string(), tensor, *wrong, wrong - values.begin()));
}

class WeightsAtStepZero : public StartingPoint {
 public:
  int64_t step() const override { return 0; }
  void ReadState(Optimizer& /*optimizer*/) const override {}
};

class LlmcWeights : public WeightsAtStepZero {
 public:
  LlmcWeights(const std::filesystem::path& file, const LlmcHeader& header,
              const NetworkShape& shape)
      : file_(file) {
    RefuseUnlikeGpt2(file, shape);
    CheckSame(file, "layers", header.shape.layers, shape.layers);
    CheckSame(file, "channels", header.shape.hidden, shape.hidden);
    CheckSame(file, "attention heads", header.shape.heads, shape.heads);
    CheckSame(file, "tokens in its vocabulary", header.shape.vocabulary, shape.vocabulary);
    CheckPositions(file, header.shape.sequence, shape.sequence);
    int64_t at = kHeaderBytes;
    for (const auto& [name, elements] : LlmcOrder(header)) {
      tensors_[name] = at;
      at += elements * int64_t{sizeof(float)};
    }
  }

  void ReadVersion(const StageLayout& layout, int64_t age, float* weights) const override {
    CHECK(age == 0);
    std::fill_n(weights, layout.size(), 0.0f);
    for (const StageTensor& place : layout.tensors()) {
      const std::string name = place.role == TensorRole::kHead ? kTokenEmbedding : place.name;
      const std::span values(weights + place.offset, static_cast<size_t>(place.elements()));
      file_.Read(tensors_.at(name), std::as_writable_bytes(values));
      CheckFinite(file_.path(), name, values);
    }
  }

 private:
  InputFile file_;
  std::map<std::string, int64_t> tensors_;  ///< first byte's place in the file
};

class SafetensorsWeights : public WeightsAtStepZero {
 public:
  SafetensorsWeights(const std::filesystem::path& file, const NetworkShape& shape) : file_(file) {
    const StageLayout layout(shape, {0, shape.layers});
    for (const StageTensor& place : layout.tensors()) NameOf(place);
    if (!shape.bias) RefuseBiases(layout);
    if (shape.tied) RefuseOwnHead(*layout.tied());
    const bool llama = IsLlama(shape);
    const std::string beyond = llama ? fmt::format("layers.{}.input_layernorm.weight", shape.layers)
                                     : fmt::format("h.{}.ln_1.weight", shape.layers);
    for (const std::string& name : {(llama ? "model." : "transformer.") + beyond, beyond}) {
      if (!file_.tensors().contains(name)) continue;
      throw Error(
          fmt::format("{}: tensor {} is of a layer that the network, with {}, does not have",
                      file.string(), name, shape.layers));
    }
    if (shape.positions != PositionChoice::kLearned) return;
    const FileTensor& positions = file_.At(NameOf(layout.Find(kPositionEmbedding)));
    CheckPositions(file, positions.shape.empty() ? 0 : positions.shape[0], shape.sequence);
  }

  void ReadVersion(const StageLayout& layout, int64_t age, float* weights) const override {
    CHECK(age == 0);
    std::fill_n(weights, layout.size(), 0.0f);
    for (const StageTensor& place : layout.tensors()) {
      const std::string name = NameOf(place);
      std::vector<int64_t> shape = OwnShape(place);
      const std::span values(weights + place.offset, static_cast<size_t>(place.elements()));
      if (place.name == kPositionEmbedding) {
        const FileTensor& positions = file_.At(name);
        shape[0] = positions.shape[0];
        std::vector<float> all(static_cast<size_t>(positions.elements()));
        file_.Read(name, shape, false, all.data());
        std::copy_n(all.begin(), place.elements(), values.begin());
      } else {
        file_.Read(name, shape, IsTransposed(place), values.data());
      }
      CheckFinite(file_.path(), name, values);
    }
  }

 private:
  /// A network without them would be another one than the file's.
  void RefuseBiases(const StageLayout& layout) const {
    for (const StageTensor& place : layout.tensors()) {
      std::string bias = NameOf(place);
      bias.replace(bias.rfind('.'), std::string::npos, ".bias");
      if (!file_.tensors().contains(bias)) continue;
      throw Error(fmt::format("{}: holds tensor {}, but the network has no biases",
                              file_.path().string(), bias));
    }
  }

  /// A file may hold a tied head a second time, but not another one.
  void RefuseOwnHead(const StageTensor& embedding) const {
    if (!file_.tensors().contains(kHead)) return;
    const auto read = [&](const std::string& name) {
      std::vector<float> values(static_cast<size_t>(embedding.elements()));
      file_.Read(name, OwnShape(embedding), false, values.data());
      return values;
    };
    const std::vector<float> head = read(kHead);
    const std::vector<float> table = read(NameOf(embedding));
    if (std::memcmp(head.data(), table.data(), head.size() * sizeof(float)) == 0) return;
    throw Error(
        fmt::format("{}: holds a head of its own, {}, which is not the token embedding, so "
                    "it is not of a tied network (--tied)",
                    file_.path().string(), kHead));
  }

  std::string NameOf(const StageTensor& place) const {
    std::string full = HuggingFaceName(place);
    if (file_.tensors().contains(full)) return full;
    if (file_.tensors().contains(place.name)) return place.name;
    if (place.role == TensorRole::kHead) {
      StageTensor embedding = place;
      embedding.name = place.style == NameStyle::kLlama ? "embed_tokens.weight" : kTokenEmbedding;
      embedding.role = TensorRole::kEmbedding;
      return NameOf(embedding);
    }
    throw Error(fmt::format("{}: holds no tensor {}", file_.path().string(), full));
  }

  SafetensorsFile file_;
};

/// Where each tensor of a whole network lies.
std::map<std::string, std::pair<const StageTensor*, const float*>> ByName(
    const std::vector<StageWeights>& stages) {
  std::map<std::string, std::pair<const StageTensor*, const float*>> named;
  for (const StageWeights& stage : stages) {
    for (const StageTensor& place : stage.layout->tensors()) {
      if (place.copy) continue;
      named[place.name] = {&place, stage.weights + place.offset};
    }
  }
  return named;
}

void ExportLlmc(const std::filesystem::path& file, const NetworkShape& shape,
                const std::vector<StageWeights>& stages) {
  RefuseUnlikeGpt2(file, shape);
  const auto named = ByName(stages);
  const auto& [embedding, token_table] = named.at(kTokenEmbedding);
  const float* head = shape.tied ? token_table : named.at(kHead).second;
  if (std::memcmp(token_table, head, static_cast<size_t>(embedding->elements()) * sizeof(float)) !=
      0) {
    throw Error(
        fmt::format("{}: llm.c's format holds one tensor for token embedding and head, but this "
                    "network's head is its own and differs; export to .safetensors instead",
                    file.string()));
  }
  const int padded = (shape.vocabulary + kPaddedTo - 1) / kPaddedTo * kPaddedTo;
  std::array<int32_t, kHeaderNumbers> numbers = {kMagic,           kFloat32,     shape.sequence,
                                                 shape.vocabulary, shape.layers, shape.heads,
                                                 shape.hidden,     padded};
  OutputFile output(file);
  const auto put = [&](const void* bytes, int64_t size) {
    output.Write({static_cast<const char*>(bytes), static_cast<size_t>(size)});
  };
  put(numbers.data(), kHeaderBytes);
  for (const auto& [name, elements] : LlmcOrder({shape, padded})) {
    const auto& [place, values] = named.at(name);
    put(values, place->elements() * 4);
    const std::string padding(static_cast<size_t>(elements - place->elements()) * 4, '\0');
    put(padding.data(), static_cast<int64_t>(padding.size()));
  }
  output.Commit();
}

}  // namespace

std::optional<LlmcHeader> ReadLlmcHeader(const std::filesystem::path& file) {
  const InputFile opened(file);
  const int64_t size = opened.size();
  std::array<int32_t, kHeaderNumbers> numbers{};
  if (size < 4) return std::nullopt;
  opened.Read(0, std::as_writable_bytes(std::span(numbers))
                     .first(static_cast<size_t>(std::min(size, kHeaderBytes))));
  if (numbers[0] != kMagic) return std::nullopt;
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{}: {}", file.string(), why));
  };
  if (size < kHeaderBytes) refuse("is cut short within its header");
  if (numbers[1] == kBfloat16) refuse("holds bfloat16 weights (version 5); float32 (3) is known");
  if (numbers[1] != kFloat32) refuse(fmt::format("is of version {}; 3 is known", numbers[1]));
  LlmcHeader header;
  header.shape = {.layers = numbers[4],
                  .hidden = numbers[6],
                  .heads = numbers[5],
                  .sequence = numbers[2],
                  .vocabulary = numbers[3]};
  header.embedding_rows = numbers[7];
  for (const int number : {header.shape.layers, header.shape.hidden, header.shape.heads,
                           header.shape.sequence, header.shape.vocabulary}) {
    if (number < 1 || number > 10'000'000) refuse("has no sizes of a network in its header");
  }
  if (header.shape.hidden % header.shape.heads != 0 ||
      header.embedding_rows < header.shape.vocabulary) {
    refuse("has sizes in its header that do not fit together");
  }
  // Far fewer than there are, and no names are made for a number that cannot be.
  const int64_t fewest = int64_t{header.shape.layers} * header.shape.hidden * 12;
  if (size < fewest) refuse(fmt::format("has {} bytes, but its header promises more", size));
  int64_t expected = kHeaderBytes;
  for (const auto& [name, elements] : LlmcOrder(header)) expected += 4 * elements;
  if (size != expected) {
    refuse(fmt::format("has {} bytes, but its header promises {}", size, expected));
  }
  return header;
}

std::shared_ptr<const StartingPoint> OpenWeights(const std::filesystem::path& file,
                                                 const NetworkShape& shape) {
  if (const std::optional<LlmcHeader> header = ReadLlmcHeader(file)) {
    return std::make_shared<const LlmcWeights>(file, *header, shape);
  }
  return std::make_shared<const SafetensorsWeights>(file, shape);
}

void ExportWeights(const std::filesystem::path& file, const NetworkShape& shape,
                   const std::vector<StageWeights>& stages) {
  if (file.extension() == ".bin") return ExportLlmc(file, shape, stages);
  std::vector<OutgoingTensor> tensors;
  for (const auto& [name, where] : ByName(stages)) {
    const StageTensor& place = *where.first;
    tensors.push_back({.name = HuggingFaceName(place),
                       .type = "F32",
                       .shape = FileShape(place),
                       .values = where.second,
                       .transposed = IsTransposed(place)});
  }
  WriteSafetensors(file, tensors, {{"format", "pt"}});
}

}  // namespace pipelag
