#include "runtime/serial.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "runtime/breaking.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/data/sampler.h"
#include "runtime/network/digest.h"
#include "runtime/network/gemm.h"
#include "runtime/network/stage.h"
#include "runtime/optimizer/norm.h"
#include "runtime/run_control.h"

namespace pipelag {
namespace {

class SerialRun {
 public:
  SerialRun(const SerialPlan& plan, const TrainingOptions& options, const Corpus& corpus)
      : plan_(plan),
        options_(options),
        corpus_(corpus),
        first_(options.first_step()),
        control_(options.deadline),
        watch_(options, plan.microbatches) {
    PrepareThread();
    tokens_.resize(static_cast<size_t>(plan.microbatches) * TokensPerMicrobatch());
    targets_.resize(tokens_.size());
    losses_.resize(static_cast<size_t>(plan.microbatches));
    const auto boundary = static_cast<size_t>(options.shape.hidden) * TokensPerMicrobatch();
    inputs_.assign(static_cast<size_t>(plan.microbatches), std::vector<float>(boundary));
    outputs_ = inputs_;
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const auto& late = plan.stages[s].forward_delay;
      stages_.push_back(
          std::make_unique<Stage>(options, options.split[s],
                                  StageDelay{.updates = *std::max_element(late.begin(), late.end()),
                                             .synchronous_until = plan.synchronous_steps}));
      Stage& stage = *stages_.back();
      stage.activations.assign(
          static_cast<size_t>(plan.microbatches),
          std::vector<float>(static_cast<size_t>(stage.network.activation_elements())));
      const SerialStage& planned = plan.stages[s];
      int most = 0;
      for (const int delay : planned.forward_delay) most = std::max(most, delay);
      for (const int delay : planned.backward_delay) most = std::max(most, delay);
      const StageLayout& layout = stage.network.layout();
      const auto size = static_cast<size_t>(layout.size());
      stage.weights.assign(static_cast<size_t>(most) + 1, std::vector<float>(size));
      const auto all = static_cast<size_t>(layout.gradient_size());
      stage.gradients.assign(all, 0.0f);
      const bool copies = planned.backward_order.size() > static_cast<size_t>(plan.replicas);
      if (copies) stage.summand.resize(all);
      if (plan.replicas > 1) stage.of_replica.resize(all);
      std::vector<float*> versions;
      for (int64_t age = 0; age <= std::min<int64_t>(most, first_); ++age) {
        versions.push_back(stage.Version(first_ - age));
      }
      BeginStage(options, static_cast<int>(s), *stage.optimizer, versions);
    }
  }

  TrainingResult Run() {
    TrainingResult result;
    result.first_step = first_;
    result.trace.schedule = plan_.name;
    result.trace.ranks = 1;
    result.trace.stages = static_cast<int>(stages_.size());
    result.trace.microbatches = plan_.microbatches;
    result.trace.steps = std::min(plan_.steps, options_.traced_steps);
    result.trace.stage_rank.assign(stages_.size(), 0);
    result.trace.tokens_per_step = TokensPerStep(options_, plan_.microbatches);
    try {
      for (int64_t step = first_; step < first_ + plan_.steps; ++step) {
        Forward(step);
        const double sum = std::accumulate(losses_.begin(), losses_.end(), 0.0);
        result.step_losses.push_back(sum / static_cast<double>(result.trace.tokens_per_step));
        for (size_t k = 0; k < losses_.size(); ++k) {
          watch_.AddLoss((step - first_) * plan_.microbatches + static_cast<int64_t>(k),
                         losses_[k]);
        }
        Backward(step);
        Update(step);
      }
    } catch (const Diverged& diverged) {
      result.diverged = first_ + diverged.step + 1;
      result.diverged_where =
          WhereDiverged(breaks_.first(), diverged, NotFinite(), result.step_losses.back(), first_);
    }
    result.trace.spans = std::move(spans_);
    const Nanoseconds first = result.trace.spans.front().start;
    for (Span& span : result.trace.spans) {
      span.start -= first;
      span.end -= first;
    }
    SortSpans(result.trace);
    if (result.diverged) return result;
    std::vector<StageWeights> weights;
    std::vector<const float*> pointers;
    for (const auto& stage : stages_) {
      pointers.push_back(stage->optimizer->FinalWeights(stage->Version(first_ + plan_.steps)));
      weights.push_back({&stage->network.layout(), pointers.back()});
    }
    result.weights_sha256 = WeightsSha256(weights);
    if (options_.on_final_weights) options_.on_final_weights(weights);
    result.validation_tokens = TokensPerStep(options_, 1) * options_.validation_microbatches;
    SetValidationLoss(options_, ValidationLoss(options_, corpus_, pointers), result);
    result.peak_activations.assign(stages_.size(), plan_.microbatches);
    for (const auto& stage : stages_) {
      result.peak_versions.push_back(static_cast<int>(stage->weights.size()));
    }
    return result;
  }

 private:
  struct Stage {
    Stage(const TrainingOptions& options, LayerRange range, StageDelay delay)
        : network(options.shape, range, options.microbatch_size, options.recompute,
                  options.precision),
          optimizer(MakeCorrected(options.optimizer, options.correction, network.layout(), delay)) {
    }

    float* Version(int64_t version) {
      return weights[static_cast<size_t>(version) % weights.size()].data();
    }

    StageNetwork<float> network;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<std::vector<float>> activations;  // by micro-batch of the step
    std::vector<std::vector<float>> weights;      // ring over versions
    std::vector<float> gradients;
    std::vector<float> of_replica;  // but the first
    std::vector<float> summand;     // of a replica's other copies
  };

  size_t TokensPerMicrobatch() const {
    return static_cast<size_t>(options_.microbatch_size) *
           static_cast<size_t>(options_.shape.sequence);
  }
  int64_t VersionOf(int64_t step, int delay) const {
    const int64_t start = plan_.synchronous_steps;
    return step < start ? step : std::max(start, step - delay);
  }

  /// What the stage's gradient of a step was taken at; null if that were several versions.
  const float* TakenAt(size_t s, int64_t step) {
    const std::optional<int> delay = OneDelayOf(plan_.stages[s]);
    return delay ? stages_[s]->Version(VersionOf(step, *delay)) : nullptr;
  }

  /// By stage, empty where all is finite.
  std::vector<std::string> NotFinite() {
    std::vector<std::string> not_finite;
    for (const auto& stage : stages_) {
      not_finite.emplace_back();
      for (const std::vector<float>& version : stage->weights) {
        if (!not_finite.back().empty()) break;
        not_finite.back() = FirstNotFinite(stage->network.layout(), version.data());
      }
    }
    return not_finite;
  }

  /// The trace is of this run: it counts from its own first step.
  void Record(ActionKind kind, size_t stage, int64_t microbatch, Nanoseconds start,
              int64_t version) {
    const bool update = kind == ActionKind::kUpdate;
    microbatch -= update ? first_ : first_ * plan_.microbatches;
    if ((update ? microbatch : microbatch / plan_.microbatches) >= options_.traced_steps) return;
    version = std::max<int64_t>(0, version - first_);
    spans_.push_back({.kind = kind,
                      .stage = static_cast<int>(stage),
                      .microbatch = microbatch,
                      .start = start,
                      .end = control_.Now(),
                      .weight_version = version});
  }

  void Forward(int64_t step) {
    for (int i = 0; i < plan_.microbatches; ++i) {
      const auto k = static_cast<size_t>(i);
      const int64_t microbatch = step * plan_.microbatches + i;
      Token* tokens = tokens_.data() + k * TokensPerMicrobatch();
      Token* targets = targets_.data() + k * TokensPerMicrobatch();
      FillMicrobatch(corpus_, options_.seed, microbatch, options_.microbatch_size,
                     options_.shape.sequence, tokens, targets);
      for (size_t s = 0; s < stages_.size(); ++s) {
        Stage& stage = *stages_[s];
        const int64_t version = VersionOf(step, plan_.stages[s].forward_delay[k]);
        const Nanoseconds start = control_.Now();
        losses_[k] =
            stage.network.Forward(stage.Version(version), tokens, inputs_[k].data(), targets,
                                  stage.activations[k].data(), outputs_[k].data());
        See(ActionKind::kForward, s, step, k, stage.Version(version));
        inputs_[k].swap(outputs_[k]);
        Record(ActionKind::kForward, s, microbatch, start, version);
      }
    }
  }

  /// Before what it took and what it made change places.
  void See(ActionKind kind, size_t s, int64_t step, size_t k, const float* weights) {
    const bool forward = kind == ActionKind::kForward;
    const bool none_in = s == (forward ? 0 : stages_.size() - 1);
    const bool none_out = s == (forward ? stages_.size() - 1 : 0);
    using Message = std::span<const float>;
    breaks_.See({.kind = kind,
                 .slice = static_cast<int>(s),
                 .step = step - first_,
                 .microbatch = (step - first_) * plan_.microbatches + static_cast<int64_t>(k),
                 .input = none_in ? Message() : Message(inputs_[k]),
                 .output = none_out ? Message() : Message(outputs_[k]),
                 .loss = forward && none_out ? losses_[k] : 0,
                 .weights = weights},
                stages_[s]->network.layout());
  }

  /// Stage by stage, since stages may add up in different orders. inputs_[k] holds the gradient of
  /// the output of the stage at hand.
  void Backward(int64_t step) {
    const auto scale =
        static_cast<float>(1.0 / static_cast<double>(TokensPerStep(options_, plan_.microbatches)));
    const auto replicas = static_cast<size_t>(plan_.replicas);
    for (size_t s = stages_.size(); s-- > 0;) {
      Stage& stage = *stages_[s];
      const std::vector<std::vector<int>>& lists = plan_.stages[s].backward_order;
      const size_t copies = lists.size() / replicas;
      for (size_t list = 0; list < lists.size(); ++list) {
        std::vector<float>& of_replica = list < copies ? stage.gradients : stage.of_replica;
        std::vector<float>& sum = list % copies == 0 ? of_replica : stage.summand;
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (const int i : lists[list]) BackwardOf(step, s, i, scale, sum.data());
        if (list % copies != 0) Add(stage.summand, of_replica);
        if (list >= copies && list % copies == copies - 1) Add(of_replica, stage.gradients);
      }
    }
    AddTied();
  }

  /// The gradient of a tied embedding, to all that hold it: (Σ lookup) + (Σ head).
  void AddTied() {
    Stage& first = *stages_.front();
    Stage& last = *stages_.back();
    if (!options_.shape.tied) return;
    if (stages_.size() == 1) return JoinTied(first.network.layout(), first.gradients.data());
    const StageTensor& embedding = *first.network.layout().tied();
    float* lookups = first.gradients.data() + embedding.offset;
    float* heads = last.gradients.data() + last.network.layout().tied()->offset;
    for (int64_t i = 0; i < embedding.elements(); ++i) {
      lookups[i] += heads[i];
      heads[i] = lookups[i];
    }
  }

  static void Add(const std::vector<float>& from, std::vector<float>& to) {
    for (size_t k = 0; k < to.size(); ++k) to[k] += from[k];
  }

  void BackwardOf(int64_t step, size_t s, int i, float scale, float* sum) {
    Stage& stage = *stages_[s];
    const auto k = static_cast<size_t>(i);
    const int64_t version = VersionOf(step, plan_.stages[s].backward_delay[k]);
    const Nanoseconds start = control_.Now();
    stage.network.Backward(stage.Version(version), stage.activations[k].data(),
                           tokens_.data() + k * TokensPerMicrobatch(),
                           targets_.data() + k * TokensPerMicrobatch(), inputs_[k].data(), scale,
                           outputs_[k].data(), sum);
    See(ActionKind::kBackward, s, step, k, stage.Version(version));
    inputs_[k].swap(outputs_[k]);
    Record(ActionKind::kBackward, s, step * plan_.microbatches + i, start, version);
  }

  void Update(int64_t step) {
    float factor = 1;
    std::optional<double> norm;
    if (options_.clip_norm) {
      std::vector<double> norms;
      for (const auto& stage : stages_) {
        const auto own = SquaredNorms(stage->network.layout(), stage->gradients.data());
        norms.insert(norms.end(), own.begin(), own.end());
      }
      for (size_t s = stages_.size(); s-- > 0;) {
        breaks_.SeeNorms(static_cast<int>(s), step - first_, stages_[s]->network.layout(), norms);
      }
      factor = ClipFactor(norms, *options_.clip_norm);
      norm = GlobalNorm(norms);
    }
    const float rate = LearningRate(options_.learning_rate, step + 1);
    for (size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = *stages_[s];
      const Nanoseconds start = control_.Now();
      if (options_.clip_norm) {
        ScaleGradients(stage.network.layout(), factor, stage.gradients.data());
      }
      stage.optimizer->Step(stage.gradients.data(), stage.Version(step), stage.Version(step + 1),
                            rate, step + 1, TakenAt(s, step));
      stage.network.WeightsWritten(stage.Version(step + 1));
      if (options_.checkpoints != nullptr) {
        options_.checkpoints->Updated(static_cast<int>(s), step + 1, *stage.optimizer,
                                      stage.Version(step + 1));
      }
      Record(ActionKind::kUpdate, s, step, start, step + 1);
    }
    watch_.AddUpdate(step - first_, rate, norm);
  }

  const SerialPlan& plan_;
  const TrainingOptions& options_;
  const Corpus& corpus_;
  int64_t first_;  // step of the run
  RunControl control_;
  StepWatch watch_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<Token> tokens_;  // of the step
  std::vector<Token> targets_;
  std::vector<double> losses_;
  std::vector<std::vector<float>> inputs_;  // by micro-batch: what the next stage consumes
  std::vector<std::vector<float>> outputs_;
  std::vector<Span> spans_;
  BreakWatch breaks_;
};

}  // namespace

TrainingResult TrainSerially(const SerialPlan& plan, const TrainingOptions& options,
                             const Corpus& corpus) {
  CheckPlan(plan, options);
  return SerialRun(plan, options, corpus).Run();
}

}  // namespace pipelag
