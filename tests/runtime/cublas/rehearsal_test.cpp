// Whole runs with cuBLASLt's products, on a library that needs no GPU: whatever it is asked for
// while a run is under way it has been asked for before.
#include <gtest/gtest.h>

#include <ostream>

#include "models/schedule/generators.h"
#include "runtime/cuda/cublas_products.h"
#include "runtime/cuda/stage/stage.h"
#include "runtime/data/grammar.h"
#include "runtime/device/train.h"
#include "tests/runtime/cublas/fake_cublas_lt.h"
#include "tests/runtime/cuda/late_stage.h"
#include "tests/runtime/cuda/products_around.h"
#include "tests/runtime/late_backend.h"

namespace pipelag::cuda {
namespace {

/// Of a stage that rehearses when it is begun for the first time and then begins anew.
class RehearsedProducts : public ProductsAround {
 public:
  RehearsedProducts() : ProductsAround(MakeCublasProducts()) {}
  ~RehearsedProducts() override { EXPECT_EQ(begun_, 2); }
  size_t workspace_bytes() const override { return 256; }
  void UseWorkspace(void* workspace) override {
    ProductsAround::UseWorkspace(workspace);
    ++begun_;
  }

 private:
  bool See(const Sizes& sizes, const std::function<bool()>& multiply) override {
    const int searches = TheFakeCublasLt().searches;
    const bool done = multiply();
    EXPECT_TRUE(begun_ == 1 || TheFakeCublasLt().searches == searches)
        << sizes.m << " x " << sizes.k << " by " << sizes.k << " x " << sizes.n << ", epilogue "
        << static_cast<int>(sizes.epilogue);
    return done;
  }

  int begun_ = 0;
};

class CublasBackend : public LateBackend {
 public:
  using LateBackend::LateBackend;
  std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options) override {
    return std::make_unique<LateStage>(
        cuda::MakeStage(options, std::make_unique<RehearsedProducts>()));
  }
};

struct Rehearsed {
  std::string schedule;
  int ranks;
  std::string optimizer;
  Recompute recompute;
  bool llama;
  bool fuses;
};

void PrintTo(const Rehearsed& of, std::ostream* out) {
  *out << of.schedule << ", " << of.ranks << " ranks, " << of.optimizer;
}

class Rehearsal : public testing::TestWithParam<Rehearsed> {};

TEST_P(Rehearsal, HasEveryProductOfTheRun) {
  const Rehearsed& of = GetParam();
  TheFakeCublasLt() = {};
  if (!of.fuses) {
    TheFakeCublasLt().missing = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
                                 CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                 CUBLASLT_EPILOGUE_BGRADB};
  }
  const Program program(Generate(of.schedule, {.ranks = of.ranks, .microbatches = 4}), 2);
  TrainingOptions options;
  options.shape = {.layers = 4, .hidden = 16, .heads = 2, .sequence = 4, .vocabulary = 256};
  if (of.llama) {
    options.shape.norm = NormChoice::kRms;
    options.shape.positions = PositionChoice::kRotary;
    options.shape.mlp = MlpChoice::kSwiGlu;
    options.shape.key_value_heads = 1;
    options.shape.bias = false;
  }
  options.split = SplitLayers(options.shape.layers, program.schedule().stages);
  options.microbatch_size = 1;
  options.recompute = of.recompute;
  options.optimizer.name = of.optimizer;
  options.learning_rate = {.peak = 0.01f, .total_updates = 2};
  options.validation_microbatches = 1;
  const Corpus corpus = GrammarCorpus(3, 4, 4000);
  CublasBackend backend(of.ranks, 17);
  const DeviceRun run{StagePrecision::kBfloat16, DeviceTransport::kNccl};
  const TrainingResult result =
      TrainOnThreads(program, options, corpus, OnDevices(backend, run), {});
  EXPECT_FALSE(result.diverged);
  EXPECT_GT(TheFakeCublasLt().searches, 10);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Rehearsal,
    testing::Values(Rehearsed{"1f1b", 3, "adamw", Recompute::kNone, false, true},
                    Rehearsed{"1f1b", 2, "muon", Recompute::kFull, false, true},
                    Rehearsed{"zb-h1", 2, "muon", Recompute::kSelective, true, true},
                    Rehearsed{"zb-v", 2, "adamw", Recompute::kNone, false, false}));

}  // namespace
}  // namespace pipelag::cuda
