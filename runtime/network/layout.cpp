#include "runtime/network/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "models/error.h"
#include "models/random.h"

namespace pipelag {
namespace {

// Keeps the weights' random numbers apart from those drawn for other purposes with the same seed.
constexpr uint64_t kWeightStream = 1;

/// What the parts of a network are called.
struct Words {
  NameStyle style;
  const char* layer;  // the number goes in
  const char* tokens;
  const char* norm1;
  const char* norm2;
  const char* attention;
  const char* projection;
  const char* up;
  const char* down;
  const char* final_norm;
};

constexpr Words kGpt2Words = {NameStyle::kGpt2, "h.{}.",  "wte",  "ln_1",   "ln_2",
                              "attn",           "c_proj", "c_fc", "c_proj", "ln_f"};
constexpr Words kLlamaWords = {
    NameStyle::kLlama, "layers.{}.", "embed_tokens", "input_layernorm", "post_attention_layernorm",
    "self_attn",       "o_proj",     "up_proj",      "down_proj",       "norm"};

int TensorsPerLayer(const NetworkShape& shape) {
  const int matrices =
      (shape.packed_attention() ? 2 : 4) + (shape.mlp == MlpChoice::kSwiGlu ? 3 : 2);
  return matrices * (shape.bias ? 2 : 1) + 2 * (shape.norm_shifts() ? 2 : 1);
}

int EmbeddingCount(const NetworkShape& shape) {
  return shape.positions == PositionChoice::kLearned ? 2 : 1;
}

}  // namespace

class StageLayout::Builder {
 public:
  Builder(const NetworkShape& shape, StageLayout& layout)
      : shape_(shape), words_(IsLlama(shape) ? kLlamaWords : kGpt2Words), layout_(layout) {}

  void Embeddings() {
    index_ = 0;
    if (shape_.tied) layout_.tied_ = 0;
    TokenEmbedding();
    if (shape_.positions == PositionChoice::kLearned) {
      Add("wpe.weight", shape_.sequence, shape_.hidden, TensorRole::kEmbedding,
          InitialValue::kNormal);
    }
  }

  void Layer(int layer) {
    index_ = EmbeddingCount(shape_) + TensorsPerLayer(shape_) * layer;
    const int c = shape_.hidden;
    const auto inner = static_cast<int>(shape_.inner_size());
    const auto kv = static_cast<int>(shape_.kv_size());
    const std::string prefix = fmt::format(fmt::runtime(words_.layer), layer);
    const std::string attention = prefix + words_.attention + ".";
    const std::string mlp = prefix + "mlp.";
    Norm(prefix + words_.norm1);
    if (shape_.packed_attention()) {
      Linear(attention + "c_attn", 3 * c, c);
    } else {
      Linear(attention + "q_proj", c, c);
      Linear(attention + "k_proj", kv, c);
      Linear(attention + "v_proj", kv, c);
    }
    Linear(attention + words_.projection, c, c, InitialValue::kResidual);
    Norm(prefix + words_.norm2);
    if (shape_.mlp == MlpChoice::kSwiGlu) Linear(mlp + "gate_proj", inner, c);
    Linear(mlp + words_.up, inner, c);
    Linear(mlp + words_.down, c, inner, InitialValue::kResidual);
  }

  void Head() {
    index_ = EmbeddingCount(shape_) + TensorsPerLayer(shape_) * shape_.layers;
    Norm(words_.final_norm);
    if (shape_.tied) return TiedHead();
    Add("lm_head.weight", shape_.vocabulary, shape_.hidden, TensorRole::kHead,
        InitialValue::kNormal);
  }

 private:
  void TiedHead() {
    layout_.joins_ = layout_.tied() != nullptr;
    if (layout_.joins_) return;
    layout_.tied_ = static_cast<int>(layout_.tensors_.size());
    index_ = 0;
    TokenEmbedding();
    layout_.tensors_.back().copy = true;
  }

  void TokenEmbedding() {
    Add(fmt::format("{}.weight", words_.tokens), shape_.vocabulary, shape_.hidden,
        TensorRole::kEmbedding, InitialValue::kNormal);
  }

  void Norm(const std::string& name) {
    Add(name + ".weight", shape_.hidden, 1, TensorRole::kVector, InitialValue::kOne);
    if (!shape_.norm_shifts()) return;
    Add(name + ".bias", shape_.hidden, 1, TensorRole::kVector, InitialValue::kZero);
  }

  void Linear(const std::string& name, int rows, int cols,
              InitialValue initial = InitialValue::kNormal) {
    Add(name + ".weight", rows, cols, TensorRole::kMatrix, initial);
    if (shape_.bias) Add(name + ".bias", rows, 1, TensorRole::kVector, InitialValue::kZero);
  }

  void Add(std::string name, int rows, int cols, TensorRole role, InitialValue initial) {
    layout_.tensors_.push_back(
        {std::move(name), rows, cols, role, index_++, layout_.size_, initial, words_.style, false});
    const int64_t elements = layout_.tensors_.back().elements();
    layout_.size_ += (elements + kAlignment - 1) / kAlignment * kAlignment;
  }

  const NetworkShape& shape_;
  const Words& words_;
  StageLayout& layout_;
  int index_ = 0;
};

StageLayout::StageLayout(const NetworkShape& shape, LayerRange range) {
  CheckShape(shape);
  CHECK(range.first >= 0 && range.first < range.last && range.last <= shape.layers);
  Builder builder(shape, *this);
  if (range.first == 0) builder.Embeddings();
  for (int layer = range.first; layer < range.last; ++layer) builder.Layer(layer);
  if (range.last == shape.layers) builder.Head();
}

const StageTensor& StageLayout::Find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const StageTensor& tensor) { return tensor.name == name; });
  if (found == tensors_.end()) throw Error(fmt::format("this stage holds no tensor {}", name));
  return *found;
}

int TensorCount(const NetworkShape& shape) {
  const int head = (shape.norm_shifts() ? 2 : 1) + (shape.tied ? 0 : 1);
  return EmbeddingCount(shape) + TensorsPerLayer(shape) * shape.layers + head;
}

namespace {

/// All of 0 to `count`: much of it in one piece for each core. Drawing a billion values takes one
/// of them half a minute.
void InPieces(int64_t count, const std::function<void(int64_t begin, int64_t end)>& piece) {
  constexpr int64_t kLeast = int64_t{1} << 22;
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t pieces = std::clamp<int64_t>(count / kLeast, 1, cores);
  if (pieces == 1) return piece(0, count);
  std::vector<std::jthread> threads;
  for (int64_t k = 0; k < pieces; ++k) {
    threads.emplace_back([&, k] { piece(count * k / pieces, count * (k + 1) / pieces); });
  }
}

}  // namespace

void InitialiseWeights(const StageLayout& layout, const NetworkShape& shape, uint64_t seed,
                       float* weights) {
  std::fill(weights, weights + layout.size(), 0.0f);
  for (const StageTensor& tensor : layout.tensors()) {
    float* values = weights + tensor.offset;
    if (tensor.initial == InitialValue::kZero) continue;
    if (tensor.initial == InitialValue::kOne) {
      std::fill(values, values + tensor.elements(), 1.0f);
      continue;
    }
    const bool residual = tensor.initial == InitialValue::kResidual;
    const double deviation = residual ? 0.02 / std::sqrt(2.0 * shape.layers) : 0.02;
    InPieces(tensor.elements(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t bits = RandomBits(seed, static_cast<uint64_t>(tensor.global_index),
                                         static_cast<uint64_t>(i), kWeightStream);
        values[i] = static_cast<float>(deviation * StandardNormal(bits));
      }
    });
  }
}

}  // namespace pipelag
