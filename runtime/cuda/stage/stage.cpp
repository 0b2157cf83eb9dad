#include "runtime/cuda/stage/stage.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "models/error.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/stage/network.h"
#include "runtime/cuda/stage/optimizer.h"

namespace pipelag::cuda {
namespace {

/// T: float or Bfloat16, the compute type. Behind the masters of a version stand its copies, if
/// they are not the masters themselves.
template <class T>
class Stage : public DeviceStage {
 public:
  Stage(const DeviceStageOptions& options, std::unique_ptr<Products> products);

  const StageLayout& layout() const override { return network_.layout(); }
  bool first() const override { return network_.first(); }
  bool last() const override { return network_.last(); }
  size_t activation_bytes() const override { return network_.activation_bytes(); }
  size_t kept_bytes() const override { return network_.kept_bytes(); }
  size_t weight_bytes() const override { return weights_.size(); }
  size_t gradient_bytes() const override { return gradients_.size(); }
  size_t message_bytes() const override { return network_.message_bytes(); }
  size_t scratch_bytes() const override { return scratch_.size(); }
  size_t state_bytes() const override { return state_.size(); }

  void Begin(Stream stream, void* state, void* scratch) override;
  void Forward(Stream stream, const void* weights, const Token* tokens, const void* input,
               const Token* targets, void* activation, void* output, double* loss) override;
  void Backward(Stream stream, const void* weights, const void* activation, const Token* tokens,
                const Token* targets, const void* output_gradient, float loss_scale,
                void* input_gradient, float* gradients) override;
  void BackwardInput(Stream stream, const void* weights, const void* activation,
                     const Token* targets, const void* output_gradient, float loss_scale,
                     void* input_gradient, void* kept) override;
  void BackwardWeight(Stream stream, const void* activation, const Token* tokens, const void* kept,
                      float loss_scale, float* gradients) override;
  void JoinTied(Stream stream, float* gradients) override;
  void SquaredNorms(Stream stream, const float* gradients, double* norms) override;
  void ClipFactor(Stream stream, const double* squared_norms, int count, double max_norm,
                  float* factor) override;
  void Update(Stream stream, float* gradients, const void* source, void* target, float rate,
              int64_t number, const void* taken_at, const float* factor) override;
  void Upload(Stream stream, const float* host, void* weights) override;
  void Download(Stream stream, const void* weights, float* host) override;
  void LoadState(Stream stream, Optimizer& host) override { optimizer_.LoadState(stream, host); }
  void StoreState(Stream stream, Optimizer& host) override { optimizer_.StoreState(stream, host); }

 private:
  static constexpr bool kCopies = !std::is_same_v<T, float>;

  Weights<T> WeightsIn(const void* version) const;
  WeightsOut WeightsTo(void* version) const;
  size_t layout_bytes() const { return static_cast<size_t>(layout().size()) * sizeof(float); }

  std::unique_ptr<Products> products_;
  DeviceNetwork<T> network_;
  DeviceOptimizer optimizer_;
  BytePlaces weights_;
  size_t copies_ = 0;  ///< place of the copies in a version
  BytePlaces gradients_;
  BytePlaces state_;  ///< the network's tables, then the optimizer's state
  size_t optimizer_state_ = 0;
  BytePlaces scratch_;  ///< the products' workspace, then the network's or the optimizer's
  size_t own_scratch_ = 0;
};

template <class T>
Stage<T>::Stage(const DeviceStageOptions& options, std::unique_ptr<Products> products)
    : products_(std::move(products)),
      network_(options.shape, options.range, options.microbatch_size, options.recompute,
               *products_),
      optimizer_(network_.layout(), options.optimizer, options.correction, options.delay, kCopies,
                 *products_) {
  const auto values = static_cast<size_t>(layout().size() + network_.weight_padding());
  if (kCopies) {
    weights_.Take(layout_bytes());
    copies_ = weights_.Take(values * sizeof(T));
  } else {
    weights_.Take(values * sizeof(float));
  }
  gradients_.Take(static_cast<size_t>(layout().gradient_size() + network_.gradient_padding()) *
                  sizeof(float));
  state_.Take(network_.table_bytes());
  optimizer_state_ = state_.Take(optimizer_.state_bytes());
  scratch_.Take(products_->workspace_bytes());
  own_scratch_ = scratch_.Take(std::max(network_.scratch_bytes(), optimizer_.scratch_bytes()));
}

template <class T>
Weights<T> Stage<T>::WeightsIn(const void* version) const {
  const auto* masters = static_cast<const float*>(version);
  if constexpr (kCopies) {
    return {masters, reinterpret_cast<const T*>(static_cast<const std::byte*>(version) + copies_)};
  } else {
    return {masters, masters};
  }
}

template <class T>
WeightsOut Stage<T>::WeightsTo(void* version) const {
  WeightsOut out = {.masters = static_cast<float*>(version)};
  if (kCopies) {
    out.copies = reinterpret_cast<Bfloat16*>(static_cast<std::byte*>(version) + copies_);
  }
  return out;
}

template <class T>
void Stage<T>::Begin(Stream stream, void* state, void* scratch) {
  auto* state_at = static_cast<std::byte*>(state);
  auto* scratch_at = static_cast<std::byte*>(scratch);
  products_->UseWorkspace(scratch_at);
  network_.Begin(stream, state_at, scratch_at + own_scratch_);
  optimizer_.Begin(stream, state_at + optimizer_state_, scratch_at + own_scratch_);
}

template <class T>
void Stage<T>::Forward(Stream stream, const void* weights, const Token* tokens, const void* input,
                       const Token* targets, void* activation, void* output, double* loss) {
  network_.Forward(stream, WeightsIn(weights), tokens, static_cast<const T*>(input), targets,
                   activation, static_cast<T*>(output), loss);
}

template <class T>
void Stage<T>::Backward(Stream stream, const void* weights, const void* activation,
                        const Token* tokens, const Token* targets, const void* output_gradient,
                        float loss_scale, void* input_gradient, float* gradients) {
  network_.Backward(stream, WeightsIn(weights), activation, tokens, targets,
                    static_cast<const T*>(output_gradient), loss_scale,
                    static_cast<T*>(input_gradient), gradients);
}

template <class T>
void Stage<T>::BackwardInput(Stream stream, const void* weights, const void* activation,
                             const Token* targets, const void* output_gradient, float loss_scale,
                             void* input_gradient, void* kept) {
  network_.BackwardInput(stream, WeightsIn(weights), activation, targets,
                         static_cast<const T*>(output_gradient), loss_scale,
                         static_cast<T*>(input_gradient), kept);
}

template <class T>
void Stage<T>::BackwardWeight(Stream stream, const void* activation, const Token* tokens,
                              const void* kept, float loss_scale, float* gradients) {
  network_.BackwardWeight(stream, activation, tokens, kept, loss_scale, gradients);
}

template <class T>
void Stage<T>::JoinTied(Stream stream, float* gradients) {
  if (!layout().joins()) return;
  const StageTensor& tied = *layout().tied();
  AddBuffer(stream, tied.elements(), gradients + layout().size(), gradients + tied.offset);
}

template <class T>
void Stage<T>::SquaredNorms(Stream stream, const float* gradients, double* norms) {
  optimizer_.SquaredNorms(stream, gradients, norms);
}

template <class T>
void Stage<T>::ClipFactor(Stream stream, const double* squared_norms, int count, double max_norm,
                          float* factor) {
  cuda::ClipFactor(stream, count, squared_norms, max_norm, factor);
}

template <class T>
void Stage<T>::Update(Stream stream, float* gradients, const void* source, void* target, float rate,
                      int64_t number, const void* taken_at, const float* factor) {
  optimizer_.Update(stream, gradients, static_cast<const float*>(source), WeightsTo(target), rate,
                    number, static_cast<const float*>(taken_at), factor);
  const int64_t joined = layout().gradient_size() - layout().size();
  if (joined > 0) {
    Clear(stream, static_cast<size_t>(joined) * sizeof(float), gradients + layout().size());
  }
}

template <class T>
void Stage<T>::Upload(Stream stream, const float* host, void* weights) {
  const WeightsOut out = WeightsTo(weights);
  Copy(stream, layout_bytes(), host, out.masters);
  if (kCopies) ConvertToBfloat16(stream, layout().size(), out.masters, out.copies);
  Wait(stream);  // the host's memory may be ordinary, and is the caller's again
}

template <class T>
void Stage<T>::Download(Stream stream, const void* weights, float* host) {
  Copy(stream, layout_bytes(), weights, host);
  Wait(stream);
}

}  // namespace

std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options,
                                       std::unique_ptr<Products> products) {
  if (options.precision == StagePrecision::kFloat32) {
    return std::make_unique<Stage<float>>(options, std::move(products));
  }
  return std::make_unique<Stage<Bfloat16>>(options, std::move(products));
}

}  // namespace pipelag::cuda
