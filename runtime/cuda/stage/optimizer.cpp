#include "runtime/cuda/stage/optimizer.h"

#include <algorithm>

#include "models/error.h"
#include "runtime/cuda/memory.h"
#include "runtime/device/optimizers.h"

namespace pipelag::cuda {

DeviceOptimizer::DeviceOptimizer(const StageLayout& layout, const OptimizerOptions& options,
                                 const CorrectionOptions& correction, StageDelay delay, bool bf16,
                                 Products& products)
    : layout_(layout) {
  CheckDeviceOptimizer(options, correction);
  const size_t count = layout.tensors().size();
  // Groups by rule, and by whether weights decay.
  for (const bool orthogonal : {true, false}) {
    for (const bool vectors : {false, true}) {
      std::vector<bool> chosen(count);
      for (size_t i = 0; i < count; ++i) {
        const StageTensor& tensor = layout.tensors()[i];
        chosen[i] = IsOrthogonalised(options, tensor) == orthogonal &&
                    (tensor.role == TensorRole::kVector) == vectors;
      }
      AddGroup(chosen, options, correction, delay, bf16, products);
    }
  }
  std::vector<TensorSpan> spans;
  for (const StageTensor& tensor : layout.tensors()) {
    spans.push_back({.offset = tensor.offset, .elements = tensor.elements()});
  }
  norm_ = PlanNorms(spans);
  pieces_ = state_.Take(norm_.pieces.size() * sizeof(TensorSpan));
  first_pieces_ = state_.Take(norm_.first_pieces.size() * sizeof(int64_t));
  size_t scratch = norm_.pieces.size() * sizeof(double);
  for (const auto& group : groups_) scratch = std::max(scratch, group->rule->scratch_bytes());
  scratch_.Take(scratch);
}

void DeviceOptimizer::AddGroup(const std::vector<bool>& chosen, const OptimizerOptions& options,
                               const CorrectionOptions& correction, StageDelay delay, bool bf16,
                               Products& products) {
  const auto first = std::find(chosen.begin(), chosen.end(), true);
  if (first == chosen.end()) return;
  const StageTensor& tensor = layout_.tensors()[static_cast<size_t>(first - chosen.begin())];
  auto group = std::make_unique<Group>(layout_, chosen, correction, delay);
  if (!IsOrthogonalised(options, tensor)) {
    group->rule = MakeElementRule(options, group->tensors);
    group->rate_factor = AuxFactorOf(options);
  } else if (bf16) {
    group->rule = MakeMuonRule<Bfloat16>(options, layout_, group->tensors, products);
  } else {
    group->rule = MakeMuonRule<float>(options, layout_, group->tensors, products);
  }
  if (tensor.role != TensorRole::kVector) group->weight_decay = WeightDecayOf(options);
  group->chunks = state_.Take(group->tensors.chunks.size() * sizeof(UpdateChunk));
  group->tables = state_.Take(group->rule->table_bytes());
  const size_t arrays = group->rule->Arrays().size() + (group->correction.array().empty() ? 0 : 1);
  for (size_t i = 0; i < arrays; ++i) {
    const auto elements = static_cast<size_t>(group->tensors.state_elements);
    group->arrays.push_back(state_.Take(elements * sizeof(float)));
  }
  groups_.push_back(std::move(group));
}

void DeviceOptimizer::Begin(Stream stream, std::byte* state, std::byte* scratch) {
  state_at_ = state;
  scratch_at_ = scratch;
  Clear(stream, state_.size(), state);
  for (const auto& group : groups_) {
    Copy(stream, group->tensors.chunks.size() * sizeof(UpdateChunk), group->tensors.chunks.data(),
         state + group->chunks);
    group->rule->Begin(stream, state + group->tables, scratch);
    group->correction.Forget();
  }
  Copy(stream, norm_.pieces.size() * sizeof(TensorSpan), norm_.pieces.data(), state + pieces_);
  Copy(stream, norm_.first_pieces.size() * sizeof(int64_t), norm_.first_pieces.data(),
       state + first_pieces_);
}

void DeviceOptimizer::SquaredNorms(Stream stream, const float* gradients, double* norms) const {
  cuda::SquaredNorms(stream, static_cast<int64_t>(layout_.tensors().size()),
                     static_cast<int64_t>(norm_.pieces.size()),
                     reinterpret_cast<const TensorSpan*>(state_at_ + pieces_),
                     reinterpret_cast<const int64_t*>(state_at_ + first_pieces_), gradients,
                     reinterpret_cast<double*>(scratch_at_), norms);
}

void DeviceOptimizer::Update(Stream stream, float* gradients, const float* source,
                             const WeightsOut& target, float rate, int64_t number,
                             const float* taken_at, const float* factor) {
  for (const auto& group : groups_) {
    const float corrected = group->correction.Rate(rate * group->rate_factor, number);
    std::vector<float*> state;
    for (size_t i = 0; i < group->arrays.size(); ++i) state.push_back(Array(*group, i));
    const bool corrects = !group->correction.array().empty();
    const GroupUpdate update = {
        .chunks = reinterpret_cast<const UpdateChunk*>(state_at_ + group->chunks),
        .buffers = {.gradients = gradients,
                    .source = source,
                    .target = target.masters,
                    .copy = target.copies,
                    .taken_at = taken_at,
                    .factor = factor,
                    .kept = 1.0f - corrected * group->weight_decay},
        .correction = group->correction.Begin(corrects ? state.back() : nullptr, corrected,
                                              group->weight_decay, number, taken_at != nullptr),
        .rate = corrected,
        .number = number};
    group->rule->Update(stream, update, state);
  }
}

void DeviceOptimizer::ForParts(Optimizer& host,
                               const std::function<void(const StatePart&, float*, double*)>& body) {
  for (const StatePart& part : host.State()) {
    float* array = nullptr;
    double* number = nullptr;
    for (const auto& group : groups_) {
      const std::vector<int>& tensors = group->tensors.tensors;
      const auto at = std::find(tensors.begin(), tensors.end(), part.tensor);
      if (at == tensors.end()) continue;
      const auto place = static_cast<size_t>(at - tensors.begin());
      std::vector<std::string_view> names = group->rule->Arrays();
      if (!group->correction.array().empty()) names.push_back(group->correction.array());
      const auto named = std::find(names.begin(), names.end(), part.name);
      if (named != names.end()) {
        array = Array(*group, static_cast<size_t>(named - names.begin())) +
                group->tensors.state_offsets[place];
      } else {
        number = group->rule->Number(part.name);
        if (number == nullptr) number = group->correction.Number(part.name);
      }
    }
    CHECK(array != nullptr || number != nullptr);
    body(part, array, number);
  }
}

void DeviceOptimizer::LoadState(Stream stream, Optimizer& host) {
  ForParts(host, [&](const StatePart& part, float* array, double* number) {
    if (array != nullptr) {
      Copy(stream, part.floats.size_bytes(), part.floats.data(), array);
    } else {
      *number = part.doubles.empty() ? static_cast<double>(part.floats[0]) : part.doubles[0];
    }
  });
  Wait(stream);
}

void DeviceOptimizer::StoreState(Stream stream, Optimizer& host) {
  ForParts(host, [&](const StatePart& part, float* array, double* number) {
    if (array != nullptr) {
      Copy(stream, part.floats.size_bytes(), array, part.floats.data());
    } else if (part.doubles.empty()) {
      part.floats[0] = static_cast<float>(*number);
    } else {
      part.doubles[0] = *number;
    }
  });
  Wait(stream);
}

}  // namespace pipelag::cuda
