// Optimizers and corrections on an emulated device against those of the CPU, update by update.
#include "runtime/cuda/stage/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/error.h"
#include "runtime/device/optimizers.h"
#include "runtime/optimizer/norm.h"
#include "tests/runtime/cuda/device_chain.h"
#include "tests/runtime/optimizer_rules.h"

namespace pipelag::cuda {
namespace {

constexpr int kSteps = 20;
/// Of those corrections that keep anything.
constexpr const char* kKeeping[] = {"error-feedback", "weight-prediction", "dc-asgd-adaptive"};
constexpr LayerRange kRange = {1, 2};
constexpr StageDelay kDelay = {.updates = 2, .synchronous_until = 3};

/// One course of both: an update a step, from gradients of their own, to a version of its own, of
/// which the oldest but two are what gradients were taken at.
class Course {
 public:
  Course(const OptimizerOptions& options, const CorrectionOptions& correction,
         StagePrecision precision = StagePrecision::kFloat32)
      : layout_(Shape(), kRange),
        host_(MakeCorrected(options, correction, layout_, kDelay)),
        stage_(MakeStage({.shape = Shape(),
                          .range = kRange,
                          .microbatch_size = 1,
                          .recompute = Recompute::kNone,
                          .precision = precision,
                          .optimizer = options,
                          .correction = correction,
                          .delay = kDelay},
                         MakeTestProducts(true))),
        state_(stage_->state_bytes()),
        scratch_(stage_->scratch_bytes()),
        gradients_(stage_->gradient_bytes()),
        factor_(sizeof(float)) {
    PrepareThread();
    stage_->Begin(nullptr, state_.get(), scratch_.get());
    for (int i = 0; i < 3; ++i) {
      expected_.push_back(Initial(layout_));
      versions_.emplace_back(stage_->weight_bytes());
      stage_->Upload(nullptr, expected_.back().data(), versions_.back().get());
    }
  }

  /// Update `number` of the CPU alone, of the device alone, or of both.
  void Host(int number) {
    std::vector<float> gradients = Gradients(layout_, number);
    const float factor = Factor(number);
    ScaleGradients(layout_, factor, gradients.data());
    std::vector<float> next = expected_.back();
    host_->Step(gradients.data(), expected_.back().data(), next.data(), RateOf(number), number,
                expected_.front().data());
    expected_.erase(expected_.begin());
    expected_.push_back(std::move(next));
  }
  void Device(int number) {
    const std::vector<float> gradients = Gradients(layout_, number);
    std::memcpy(gradients_.get(), gradients.data(), gradients.size() * sizeof(float));
    scratch_.Poison();
    *factor_.as<float>() = Factor(number);
    // The oldest version is what the gradient was taken at, and makes way for the next.
    std::rotate(versions_.begin(), versions_.begin() + 1, versions_.end());
    DeviceBuffer& target = versions_.back();
    stage_->Update(nullptr, gradients_.as<float>(), versions_[1].get(), target.get(),
                   RateOf(number), number, target.get(),
                   Factor(number) == 1 ? nullptr : factor_.as<float>());
    Wait(nullptr);
    for (int64_t i = 0; i < layout_.size(); ++i) ASSERT_EQ(gradients_.as<float>()[i], 0.0f);
  }
  void Both(int number) {
    Host(number);
    Device(number);
  }

  std::vector<float> actual() {
    std::vector<float> weights(static_cast<size_t>(layout_.size()));
    stage_->Download(nullptr, versions_.back().get(), weights.data());
    Wait(nullptr);
    return weights;
  }
  const std::vector<float>& expected() const { return expected_.back(); }

  /// The device's state becomes the CPU's, and its versions too; or the other way round.
  void LoadFrom(Course& other) {
    for (size_t v = 0; v < versions_.size(); ++v) {
      stage_->Upload(nullptr, other.expected_[v].data(), versions_[v].get());
    }
    stage_->LoadState(nullptr, *other.host_);
  }
  void StoreToHost() {
    for (size_t v = 0; v < versions_.size(); ++v) {
      stage_->Download(nullptr, versions_[v].get(), expected_[v].data());
    }
    stage_->StoreState(nullptr, *host_);
  }

  DeviceStage& stage() { return *stage_; }
  DeviceBuffer& newest() { return versions_.back(); }
  Optimizer& host() { return *host_; }
  const StageLayout& layout() const { return layout_; }

 private:
  /// A course that warms up, and clipping at some of its updates.
  static float RateOf(int number) {
    return kRate * std::min(1.0f, 0.25f * static_cast<float>(number));
  }
  static float Factor(int number) { return number % 3 == 0 ? 0.7f : 1.0f; }

  StageLayout layout_;
  std::unique_ptr<Optimizer> host_;
  std::unique_ptr<DeviceStage> stage_;
  DeviceBuffer state_;
  DeviceBuffer scratch_;
  DeviceBuffer gradients_;
  DeviceBuffer factor_;
  std::vector<std::vector<float>> expected_;  ///< newest last
  std::vector<DeviceBuffer> versions_;
};

std::vector<OptimizerOptions> Optimizers() {
  std::vector<OptimizerOptions> all;
  for (const std::string& name : DeviceOptimizerNames()) all.push_back({.name = name});
  all.push_back({.name = "sgd", .weight_decay = 0.1f, .nesterov = true});
  all.push_back({.name = "muon",
                 .nesterov = false,
                 .muon_scale = MuonScale::kJordan,
                 .muon_aux_learning_rate = 3e-4f});
  return all;
}

std::vector<CorrectionOptions> Corrections() {
  std::vector<CorrectionOptions> all;
  for (const std::string& name : DeviceCorrectionNames()) all.push_back({.name = name});
  all.push_back({.name = "error-feedback", .decay_inside = true, .rescale_previous = true});
  all.push_back({.name = "error-feedback", .strength = 0.5f, .repeat_first = true});
  all.push_back({.name = "dc-asgd", .strength = 0.0f});
  all.push_back({.name = "weight-prediction", .horizon = 0.5f});
  return all;
}

/// The worst difference by a tensor's largest value; 0 only for the same bits.
double Difference(const StageLayout& layout, const std::vector<float>& actual,
                  const std::vector<float>& expected) {
  if (actual == expected) return 0;
  double worst = 1e-30;
  for (const StageTensor& tensor : layout.tensors()) {
    double scale = 0;
    double error = 0;
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
      const double value = expected[static_cast<size_t>(i)];
      scale = std::max(scale, std::fabs(value));
      const double own = std::fabs(static_cast<double>(actual[static_cast<size_t>(i)]) - value);
      if (!(own <= error)) error = own;
    }
    if (!(error <= worst * scale)) worst = error / scale;
  }
  return worst;
}

/// Newton-Schulz steps are products, whose sums have another order on a device; rounding grows by
/// their slope, at most 3.4445 in each of five.
double Tolerance(const OptimizerOptions& options) { return options.name == "muon" ? 1e-5 : 0; }

void ExpectFollows(const OptimizerOptions& options, const CorrectionOptions& correction) {
  Course course(options, correction);
  for (int n = 1; n <= kSteps; ++n) course.Both(n);
  EXPECT_LE(Difference(course.layout(), course.actual(), course.expected()), Tolerance(options))
      << options.name << " " << correction.name;
}

TEST(DeviceOptimizer, EachFollowsTheCpus) {
  for (const OptimizerOptions& options : Optimizers()) ExpectFollows(options, {});
}

TEST(DeviceOptimizer, EachCorrectionFollowsTheCpus) {
  for (const CorrectionOptions& correction : Corrections()) {
    ExpectFollows({.name = "adamw"}, correction);
  }
  for (const char* correction : kKeeping) ExpectFollows({.name = "muon"}, {.name = correction});
}

TEST(DeviceOptimizer, GoesOnFromTheCpusState) {
  for (const OptimizerOptions& options : Optimizers()) {
    for (const char* correction : kKeeping) {
      Course before(options, {.name = correction, .rescale_previous = true});
      for (int n = 1; n <= 7; ++n) before.Host(n);
      Course after(options, {.name = correction, .rescale_previous = true});
      after.LoadFrom(before);
      for (int n = 8; n <= 11; ++n) {
        before.Host(n);
        after.Device(n);
      }
      EXPECT_LE(Difference(after.layout(), after.actual(), before.expected()), Tolerance(options))
          << options.name << " " << correction;
    }
  }
}

TEST(DeviceOptimizer, LeavesItsStateToTheCpu) {
  for (const OptimizerOptions& options : Optimizers()) {
    for (const char* correction : kKeeping) {
      Course course(options, {.name = correction, .rescale_previous = true});
      for (int n = 1; n <= 7; ++n) course.Device(n);
      course.StoreToHost();
      for (int n = 8; n <= 11; ++n) course.Both(n);
      EXPECT_LE(Difference(course.layout(), course.actual(), course.expected()), Tolerance(options))
          << options.name << " " << correction;
      // What a run ends with is the CPU optimizer's to say.
      course.StoreToHost();
      const std::vector<float> newest = course.actual();
      const float* last = course.host().FinalWeights(newest.data());
      EXPECT_EQ(last == newest.data(), std::string(correction) != "weight-prediction");
    }
  }
}

TEST(DeviceOptimizer, BehindMastersStandTheirCopies) {
  for (const char* name : {"adamw", "muon"}) {
    Course course({.name = name}, {}, StagePrecision::kBfloat16);
    course.Device(1);
    const std::vector<float> masters = course.actual();
    constexpr size_t kAlignment = DeviceStage::kAlignment;
    const size_t behind =
        (masters.size() * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    const auto* copies =
        reinterpret_cast<const Bfloat16*>(course.newest().as<std::byte>() + behind);
    for (const StageTensor& tensor : course.layout().tensors()) {
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
        ASSERT_EQ(copies[i].bits, ToBfloat16(masters[static_cast<size_t>(i)]).bits) << tensor.name;
      }
    }
  }
}

// Singular values end near 1 from far more coarsely rounded steps than bf16's: what Muon's authors
// run it in. Of one update's size, as its rounding neither grows nor shrinks over the course.
TEST(DeviceOptimizer, MuonInBfloat16IsNearItself) {
  Course course({.name = "muon", .weight_decay = 0.0f}, {}, StagePrecision::kBfloat16);
  const std::vector<float> initial = course.expected();
  course.Both(1);
  std::vector<float> actual = course.actual();
  std::vector<float> expected = course.expected();
  for (size_t i = 0; i < actual.size(); ++i) {
    actual[i] -= initial[i];
    expected[i] -= initial[i];
  }
  EXPECT_LT(Difference(course.layout(), actual, expected), 0.05);
}

TEST(DeviceOptimizer, TakesNormsAndClipsAsTheCpu) {
  Course course({}, {});
  const std::vector<float> gradients = Gradients(course.layout(), 1);
  const std::vector<double> expected = SquaredNorms(course.layout(), gradients.data());
  DeviceBuffer values(course.stage().gradient_bytes());
  std::copy(gradients.begin(), gradients.end(), values.as<float>());
  DeviceBuffer norms(expected.size() * sizeof(double));
  DeviceBuffer factor(sizeof(float));
  course.stage().SquaredNorms(nullptr, values.as<float>(), norms.as<double>());
  Wait(nullptr);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(norms.as<double>()[i], expected[i], 1e-14 * expected[i]) << i;
  }
  for (const double most : {0.1, 1e6}) {
    course.stage().ClipFactor(nullptr, norms.as<double>(), static_cast<int>(expected.size()), most,
                              factor.as<float>());
    Wait(nullptr);
    EXPECT_EQ(*factor.as<float>(),
              pipelag::ClipFactor({norms.as<double>(), expected.size()}, most));
  }
}

TEST(DeviceOptimizer, WhatIsNotThereIsRefusedByName) {
  const auto message = [](const OptimizerOptions& options, const CorrectionOptions& correction) {
    try {
      CheckDeviceOptimizer(options, correction);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({.name = "soap"}, {}),
            "there is no optimizer \"soap\" on a GPU; there are adamw, nadam, adan, lion, muon, "
            "sgd, sgd-ema");
  EXPECT_EQ(message({}, {.name = "basis-rotation"}),
            "there is no correction \"basis-rotation\" on a GPU; there are none, error-feedback, "
            "weight-prediction, dc-asgd, dc-asgd-adaptive, pipemare, rate-damping");
  EXPECT_EQ(message({.name = "muon"}, {.name = "pipemare"}), "");
  EXPECT_THROW(Course({.name = "mars"}, {}), Error);
}

TEST(DeviceOptimizer, WeightsThatAreGoneAreMissed) {
  Course course({}, {.name = "dc-asgd"});
  DeviceBuffer gradients(course.stage().gradient_bytes());
  gradients.Zero();
  const auto update = [&](int number) {
    course.stage().Update(nullptr, gradients.as<float>(), course.newest().get(),
                          course.newest().get(), kRate, number, nullptr, nullptr);
  };
  for (int n = 1; n <= 3; ++n) EXPECT_NO_THROW(update(n));
  EXPECT_THROW(update(4), InternalError);
}

}  // namespace
}  // namespace pipelag::cuda
