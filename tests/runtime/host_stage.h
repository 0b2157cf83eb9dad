// A stage for late GPUs: the CPU's own network and optimizer, done when the stream comes to them.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/device/device_stage.h"
#include "runtime/network/stage.h"
#include "runtime/optimizer/norm.h"
#include "tests/runtime/late_gpu.h"

namespace pipelag {

class HostStage : public DeviceStage {
 public:
  explicit HostStage(const DeviceStageOptions& options)
      : options_(options),
        network_(options.shape, options.range, options.microbatch_size, options.recompute) {}

  const StageLayout& layout() const override { return network_.layout(); }
  bool first() const override { return network_.first(); }
  bool last() const override { return network_.last(); }
  size_t activation_bytes() const override { return Bytes(network_.activation_elements()); }
  size_t kept_bytes() const override { return Bytes(network_.kept_elements()); }
  size_t weight_bytes() const override { return Bytes(layout().size()); }
  size_t gradient_bytes() const override { return Bytes(layout().gradient_size()); }
  size_t message_bytes() const override { return Bytes(network_.boundary_elements()); }
  size_t scratch_bytes() const override { return kAlignment; }
  size_t state_bytes() const override { return kAlignment; }

  void Begin(Stream stream, void*, void*) override {
    LateMachine::Of(stream).Do(stream, [this] {
      optimizer_ = MakeCorrected(options_.optimizer, options_.correction, layout(), options_.delay);
    });
  }

  void Forward(Stream stream, const void* weights, const Token* tokens, const void* input,
               const Token* targets, void* activation, void* output, double* loss) override {
    LateMachine::Of(stream).Do(stream, [=, this] {
      // Tokens that are not there yet are no tokens.
      if (!Known(tokens) || !Known(targets)) return;
      const double sum =
          network_.Forward(Of(weights), tokens, Of(input), targets, Of(activation), Of(output));
      if (last()) *loss = sum;
    });
  }
  void Backward(Stream stream, const void* weights, const void* activation, const Token* tokens,
                const Token* targets, const void* output_gradient, float loss_scale,
                void* input_gradient, float* gradients) override {
    LateMachine::Of(stream).Do(stream, [=, this] {
      if (!Known(tokens) || !Known(targets)) return;
      network_.Backward(Of(weights), Of(activation), tokens, targets, Of(output_gradient),
                        loss_scale, Of(input_gradient), gradients);
    });
  }
  void BackwardInput(Stream stream, const void* weights, const void* activation,
                     const Token* targets, const void* output_gradient, float loss_scale,
                     void* input_gradient, void* kept) override {
    LateMachine::Of(stream).Do(stream, [=, this] {
      if (!Known(targets)) return;
      network_.BackwardInput(Of(weights), Of(activation), targets, Of(output_gradient), loss_scale,
                             Of(input_gradient), Of(kept));
    });
  }
  void BackwardWeight(Stream stream, const void* activation, const Token* tokens, const void* kept,
                      float, float* gradients) override {
    LateMachine::Of(stream).Do(stream, [=, this] {
      if (!Known(tokens)) return;
      network_.BackwardWeight(Of(activation), tokens, Of(kept), gradients);
    });
  }
  void JoinTied(Stream stream, float* gradients) override {
    LateMachine::Of(stream).Do(stream, [=, this] { pipelag::JoinTied(layout(), gradients); });
  }
  void SquaredNorms(Stream stream, const float* gradients, double* norms) override {
    LateMachine::Of(stream).Do(stream, [=, this] {
      double* norm = norms;
      for (const StageTensor& tensor : layout().tensors()) {
        *norm++ = SquaredNorm(tensor.elements(), gradients + tensor.offset);
      }
    });
  }
  void ClipFactor(Stream stream, const double* norms, int count, double max_norm,
                  float* factor) override {
    LateMachine::Of(stream).Do(stream, [=] {
      *factor = pipelag::ClipFactor({norms, static_cast<size_t>(count)}, max_norm);
    });
  }
  void Update(Stream stream, float* gradients, const void* source, void* target, float rate,
              int64_t number, const void* taken_at, const float* factor) override {
    LateMachine::Of(stream).Do(stream, [=, this] {
      if (factor != nullptr) ScaleGradients(layout(), *factor, gradients);
      optimizer_->Step(gradients, Of(source), Of(target), rate, number, Of(taken_at));
      std::fill_n(gradients, layout().gradient_size(), 0.0f);
    });
  }
  void Upload(Stream stream, const float* host, void* weights) override {
    LateMachine::Of(stream).Do(stream, [=, this] { std::memcpy(weights, host, LayoutBytes()); });
    LateMachine::Of(stream).Finish(stream);
  }
  void Download(Stream stream, const void* weights, float* host) override {
    LateMachine::Of(stream).Do(stream, [=, this] { std::memcpy(host, weights, LayoutBytes()); });
    LateMachine::Of(stream).Finish(stream);
  }
  void LoadState(Stream stream, Optimizer& host) override {
    LateMachine::Of(stream).Do(stream, [&] { CopyState(host, *optimizer_); });
    LateMachine::Of(stream).Finish(stream);
  }
  void StoreState(Stream stream, Optimizer& host) override {
    LateMachine::Of(stream).Do(stream, [&] { CopyState(*optimizer_, host); });
    LateMachine::Of(stream).Finish(stream);
  }

 private:
  static size_t Bytes(int64_t elements) {
    return (static_cast<size_t>(elements) * sizeof(float) + kAlignment - 1) / kAlignment *
           kAlignment;
  }
  size_t LayoutBytes() const { return static_cast<size_t>(layout().size()) * sizeof(float); }
  static float* Of(void* memory) { return static_cast<float*>(memory); }
  static const float* Of(const void* memory) { return static_cast<const float*>(memory); }
  static bool Known(const Token* tokens) { return tokens == nullptr || *tokens != 0xFFFF; }
  static void CopyState(Optimizer& from, Optimizer& to) {
    const std::vector<StatePart> source = from.State();
    const std::vector<StatePart> target = to.State();
    CHECK(source.size() == target.size());
    for (size_t i = 0; i < source.size(); ++i) {
      CHECK(source[i].name == target[i].name);
      std::copy(source[i].floats.begin(), source[i].floats.end(), target[i].floats.begin());
      std::copy(source[i].doubles.begin(), source[i].doubles.end(), target[i].doubles.begin());
    }
  }

  DeviceStageOptions options_;
  StageNetwork<float> network_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace pipelag
