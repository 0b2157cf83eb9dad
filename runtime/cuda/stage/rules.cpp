#include "runtime/cuda/stage/rules.h"

#include <algorithm>
#include <cmath>

#include "models/error.h"
#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/adan.h"
#include "runtime/optimizer/lion.h"
#include "runtime/optimizer/muon.h"
#include "runtime/optimizer/nadam.h"
#include "runtime/optimizer/sgd.h"

namespace pipelag::cuda {
namespace {

/// Runs the same kernel over all chunks of the group.
class ElementRule : public UpdateRule {
 public:
  explicit ElementRule(const UpdateGroup& group)
      : chunks_(static_cast<int64_t>(group.chunks.size())) {}

 protected:
  template <class Step>
  void Run(Stream stream, const GroupUpdate& update, const Step& step) const {
    UpdateElements(stream, update.chunks, chunks_, update.buffers, update.correction, step);
  }

 private:
  int64_t chunks_;
};

/// 1 − β^n.
double Correction(float beta, int64_t number) {
  return 1 - std::pow(static_cast<double>(beta), static_cast<double>(number));
}

template <bool kMean>
class SgdRule : public ElementRule {
 public:
  SgdRule(const OptimizerOptions& options, const UpdateGroup& group)
      : ElementRule(group), settings_(options, kMean) {}
  std::vector<std::string_view> Arrays() const override { return {"momentum_buffer"}; }
  void Update(Stream stream, const GroupUpdate& update, const std::vector<float*>& state) override {
    Run(stream, update,
        SgdStep{.buffer = state[0],
                .momentum = settings_.momentum,
                .weight = settings_.weight,
                .rate = update.rate,
                .nesterov = settings_.nesterov});
  }

 private:
  SgdSettings settings_;
};

class AdamWRule : public ElementRule {
 public:
  AdamWRule(const OptimizerOptions& options, const UpdateGroup& group)
      : ElementRule(group), settings_(options) {}
  std::vector<std::string_view> Arrays() const override { return {"exp_avg", "exp_avg_sq"}; }
  void Update(Stream stream, const GroupUpdate& update, const std::vector<float*>& state) override {
    const double rate = update.rate;
    const double square_correction = Correction(settings_.beta2, update.number);
    Run(stream, update,
        AdamWStep{
            .first = state[0],
            .second = state[1],
            .beta1 = settings_.beta1,
            .beta2 = settings_.beta2,
            .step = static_cast<float>(rate / Correction(settings_.beta1, update.number)),
            .inverse_root = static_cast<float>(1 / std::sqrt(square_correction)),
            .epsilon = settings_.epsilon,
        });
  }

 private:
  AdamWSettings settings_;
};

class LionRule : public ElementRule {
 public:
  LionRule(const OptimizerOptions& options, const UpdateGroup& group)
      : ElementRule(group), settings_(options) {}
  std::vector<std::string_view> Arrays() const override { return {"exp_avg"}; }
  void Update(Stream stream, const GroupUpdate& update, const std::vector<float*>& state) override {
    Run(stream, update,
        LionStep{.mean = state[0],
                 .beta1 = settings_.beta1,
                 .beta2 = settings_.beta2,
                 .rate = update.rate});
  }

 private:
  LionSettings settings_;
};

class AdanRule : public ElementRule {
 public:
  AdanRule(const OptimizerOptions& options, const UpdateGroup& group)
      : ElementRule(group), settings_(options) {}
  std::vector<std::string_view> Arrays() const override {
    return {"exp_avg", "exp_avg_diff", "exp_avg_sq", "previous_gradient"};
  }
  void Update(Stream stream, const GroupUpdate& update, const std::vector<float*>& state) override {
    const double rate = update.rate;
    const auto correction = [&](float beta) { return Correction(beta, update.number); };
    const double ahead = rate * static_cast<double>(settings_.beta2);
    Run(stream, update,
        AdanStep{.mean = state[0],
                 .difference = state[1],
                 .square = state[2],
                 .previous = state[3],
                 .beta1 = settings_.beta1,
                 .beta2 = settings_.beta2,
                 .beta3 = settings_.beta3,
                 .of_mean = static_cast<float>(rate / correction(settings_.beta1)),
                 .of_difference = static_cast<float>(ahead / correction(settings_.beta2)),
                 .inverse_root = static_cast<float>(1 / std::sqrt(correction(settings_.beta3))),
                 .epsilon = settings_.epsilon,
                 .begins = update.number == 1});
  }

 private:
  AdanSettings settings_;
};

class NAdamRule : public ElementRule {
 public:
  NAdamRule(const OptimizerOptions& options, const UpdateGroup& group)
      : ElementRule(group), settings_(options) {}
  std::vector<std::string_view> Arrays() const override { return {"exp_avg", "exp_avg_sq"}; }
  double* Number(std::string_view name) override {
    return name == "mu_product" ? &product_ : nullptr;
  }
  void Begin(Stream /*stream*/, std::byte* /*tables*/, std::byte* /*scratch*/) override {
    product_ = 1;
  }
  void Update(Stream stream, const GroupUpdate& update, const std::vector<float*>& state) override {
    const double now = settings_.Momentum(update.number);
    const double next = settings_.Momentum(update.number + 1);
    product_ *= now;
    const double rate = update.rate;
    const double square_correction = Correction(settings_.beta2, update.number);
    Run(stream, update,
        NAdamStep{.first = state[0],
                  .second = state[1],
                  .beta1 = settings_.beta1,
                  .beta2 = settings_.beta2,
                  .of_gradient = static_cast<float>(rate * (1 - now) / (1 - product_)),
                  .of_mean = static_cast<float>(rate * next / (1 - product_ * next)),
                  .inverse_root = static_cast<float>(1 / std::sqrt(square_correction)),
                  .epsilon = settings_.epsilon});
  }

 private:
  NAdamSettings settings_;
  double product_ = 1;  ///< P_n
};

template <class Rule>
std::unique_ptr<UpdateRule> Make(const OptimizerOptions& options, const UpdateGroup& group) {
  return std::make_unique<Rule>(options, group);
}

struct Entry {
  std::string_view name;
  std::unique_ptr<UpdateRule> (*make)(const OptimizerOptions&, const UpdateGroup&);
  float (*decay)(const OptimizerOptions&);
};

// clang-format off
constexpr Entry kRules[] = {
    {"adamw", &Make<AdamWRule>, [](const auto& o) { return AdamWSettings(o).weight_decay; }},
    {"nadam", &Make<NAdamRule>, [](const auto& o) { return NAdamSettings(o).weight_decay; }},
    {"adan", &Make<AdanRule>, [](const auto& o) { return AdanSettings(o).weight_decay; }},
    {"lion", &Make<LionRule>, [](const auto& o) { return LionSettings(o).weight_decay; }},
    {"muon", &Make<AdamWRule>, [](const auto& o) { return MuonSettings(o).weight_decay; }},
    {"sgd", &Make<SgdRule<false>>, [](const auto& o) { return SgdSettings(o, false).weight_decay; }},
    {"sgd-ema", &Make<SgdRule<true>>, [](const auto& o) { return SgdSettings(o, true).weight_decay; }},
};
// clang-format on

const Entry& EntryOf(const OptimizerOptions& options) {
  const Entry* entry = std::find_if(std::begin(kRules), std::end(kRules),
                                    [&](const Entry& e) { return e.name == options.name; });
  CHECK(entry != std::end(kRules));
  return *entry;
}

}  // namespace

UpdateGroup MakeGroup(const StageLayout& layout, const std::vector<bool>& chosen) {
  UpdateGroup group;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (!chosen[i]) continue;
    const StageTensor& tensor = layout.tensors()[i];
    group.tensors.push_back(static_cast<int>(i));
    group.state_offsets.push_back(group.state_elements);
    group.first_chunks.push_back(static_cast<int64_t>(group.chunks.size()));
    for (int64_t at = 0; at < tensor.elements(); at += kUpdateChunk) {
      group.chunks.push_back({.offset = tensor.offset + at,
                              .state = group.state_elements + at,
                              .count = std::min(kUpdateChunk, tensor.elements() - at)});
    }
    constexpr int64_t kAlignment = StageLayout::kAlignment;
    group.state_elements += (tensor.elements() + kAlignment - 1) / kAlignment * kAlignment;
  }
  group.first_chunks.push_back(static_cast<int64_t>(group.chunks.size()));
  return group;
}

bool IsOrthogonalised(const OptimizerOptions& options, const StageTensor& tensor) {
  return options.name == "muon" && !LeftToAdamW(tensor);
}

float WeightDecayOf(const OptimizerOptions& options) { return EntryOf(options).decay(options); }

float AuxFactorOf(const OptimizerOptions& options) {
  return options.name == "muon" ? MuonSettings(options).aux_factor : 1.0f;
}

std::unique_ptr<UpdateRule> MakeElementRule(const OptimizerOptions& options,
                                            const UpdateGroup& group) {
  return EntryOf(options).make(options, group);
}

}  // namespace pipelag::cuda
