// The device's own stages for GPUs that are late.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/device/device_stage.h"
#include "tests/runtime/late_gpu.h"

namespace pipelag::cuda {

/// A stage whose work, done at once where it is emulated, is done when the stream comes to it.
class LateStage : public DeviceStage {
 public:
  explicit LateStage(std::unique_ptr<DeviceStage> inner) : inner_(std::move(inner)) {}

  const StageLayout& layout() const override { return inner_->layout(); }
  bool first() const override { return inner_->first(); }
  bool last() const override { return inner_->last(); }
  size_t activation_bytes() const override { return inner_->activation_bytes(); }
  size_t kept_bytes() const override { return inner_->kept_bytes(); }
  size_t weight_bytes() const override { return inner_->weight_bytes(); }
  size_t gradient_bytes() const override { return inner_->gradient_bytes(); }
  size_t message_bytes() const override { return inner_->message_bytes(); }
  size_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  size_t state_bytes() const override { return inner_->state_bytes(); }

  void Begin(Stream stream, void* state, void* scratch) override {
    Do(stream, [=, this] { inner_->Begin(nullptr, state, scratch); });
  }
  void Forward(Stream stream, const void* weights, const Token* tokens, const void* input,
               const Token* targets, void* activation, void* output, double* loss) override {
    Do(stream, [=, this] {
      inner_->Forward(nullptr, weights, tokens, input, targets, activation, output, loss);
    });
  }
  void Backward(Stream stream, const void* weights, const void* activation, const Token* tokens,
                const Token* targets, const void* output_gradient, float loss_scale,
                void* input_gradient, float* gradients) override {
    Do(stream, [=, this] {
      inner_->Backward(nullptr, weights, activation, tokens, targets, output_gradient, loss_scale,
                       input_gradient, gradients);
    });
  }
  void BackwardInput(Stream stream, const void* weights, const void* activation,
                     const Token* targets, const void* output_gradient, float loss_scale,
                     void* input_gradient, void* kept) override {
    Do(stream, [=, this] {
      inner_->BackwardInput(nullptr, weights, activation, targets, output_gradient, loss_scale,
                            input_gradient, kept);
    });
  }
  void BackwardWeight(Stream stream, const void* activation, const Token* tokens, const void* kept,
                      float loss_scale, float* gradients) override {
    Do(stream, [=, this] {
      inner_->BackwardWeight(nullptr, activation, tokens, kept, loss_scale, gradients);
    });
  }
  void JoinTied(Stream stream, float* gradients) override {
    Do(stream, [=, this] { inner_->JoinTied(nullptr, gradients); });
  }
  void SquaredNorms(Stream stream, const float* gradients, double* norms) override {
    Do(stream, [=, this] { inner_->SquaredNorms(nullptr, gradients, norms); });
  }
  void ClipFactor(Stream stream, const double* norms, int count, double max_norm,
                  float* factor) override {
    Do(stream, [=, this] { inner_->ClipFactor(nullptr, norms, count, max_norm, factor); });
  }
  void Update(Stream stream, float* gradients, const void* source, void* target, float rate,
              int64_t number, const void* taken_at, const float* factor) override {
    Do(stream, [=, this] {
      inner_->Update(nullptr, gradients, source, target, rate, number, taken_at, factor);
    });
  }
  void Upload(Stream stream, const float* host, void* weights) override {
    Now(stream, [=, this] { inner_->Upload(nullptr, host, weights); });
  }
  void Download(Stream stream, const void* weights, float* host) override {
    Now(stream, [=, this] { inner_->Download(nullptr, weights, host); });
  }
  void LoadState(Stream stream, Optimizer& host) override {
    Now(stream, [&] { inner_->LoadState(nullptr, host); });
  }
  void StoreState(Stream stream, Optimizer& host) override {
    Now(stream, [&] { inner_->StoreState(nullptr, host); });
  }

 private:
  static void Do(Stream stream, std::function<void()> work) {
    LateMachine::Of(stream).Do(stream, std::move(work));
  }
  static void Now(Stream stream, std::function<void()> work) {
    Do(stream, std::move(work));
    LateMachine::Of(stream).Finish(stream);
  }

  std::unique_ptr<DeviceStage> inner_;
};

}  // namespace pipelag::cuda
