// Optimizers against figures that PyTorch printed.
//
// Made with PyTorch 1.13 in float32: parameter element i starts at ((5 i) mod 7 − 3) / 8, gradient
// n (1 to 5) of element i is ((7 i + 3 n) mod 11 − 5) / 64, lr 0.01. SGD(momentum=0.9), the same
// with nesterov=True and AdamW(betas=(0.9, 0.95), weight_decay=0.1) are torch.optim's own; so is
// NAdam(betas=(0.99, 0.999)), but with mu_product * mu_next where 1.13 has mu_product * mu *
// mu_next, an error that later versions mended. It has no Lion and no Muon: those were written down
// with its tensor operations from Lion's formula and from the documentation of the later
// torch.optim.Muon (momentum as a mean, "match_rms_adamw" and "original"), weight_decay 0.1.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/network/gemm.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {
namespace {

struct Figures {
  const char* name;
  float weight_decay;
  bool nesterov;
  MuonScale scale;
  const char* tensor;
  std::vector<float> expected;
};

const std::vector<Figures>& AllFigures() {
  static const std::vector<Figures> figures = {
      // clang-format off
    // sgd
    {"sgd", 0.0f, false, MuonScale::kMoonshot,
     "h.0.attn.c_proj.weight",
     {-0.374607623f, 0.248303354f, -0.00111110928f, -0.247553855f, 0.373638362f, 0.125942662f,
     -0.123765714f, -0.374307841f, 0.248338625f, 0.00328804669f, -0.253164887f, 0.375392377f,
     0.123303354f, -0.126111105f, -0.372553825f, 0.248638377f}},
    // sgd-nesterov
    {"sgd", 0.0f, true, MuonScale::kMoonshot,
     "h.0.attn.c_proj.weight",
     {-0.374334365f, 0.248473033f, -0.00131249824f, -0.246704727f, 0.372837037f, 0.126317129f,
     -0.123732887f, -0.374533325f, 0.248035982f, 0.00389674213f, -0.253942132f, 0.375665635f,
     0.123473033f, -0.126312494f, -0.371704727f, 0.247837022f}},
    // adamw
    {"adamw", 0.1f, false, MuonScale::kMoonshot,
     "h.0.attn.c_proj.weight",
     {-0.362296492f, 0.232366681f, -0.0197793152f, -0.224203244f, 0.360527635f, 0.125655994f,
     -0.105458103f, -0.374622613f, 0.244181007f, 0.0280908123f, -0.278328538f, 0.383961022f,
     0.107990429f, -0.144155577f, -0.348579526f, 0.236151412f}},
    // nadam
    {"nadam", 0.0f, false, MuonScale::kMoonshot,
     "h.0.attn.c_proj.weight",
     {-0.368874311f, 0.246806204f, -0.0143892458f, -0.235124946f, 0.362353832f, 0.125767156f,
      -0.120060273f, -0.381601244f, 0.247448266f, 0.011646024f, -0.269430548f, 0.381125689f,
      0.121806234f, -0.139389262f, -0.360124946f, 0.237353817f}},
    // lion
    {"lion", 0.1f, false, MuonScale::kMoonshot,
     "h.0.attn.c_proj.weight",
     {-0.363128752f, 0.238792479f, -0.00996008143f, -0.218812406f, 0.363128752f, 0.124376245f,
     -0.114416182f, -0.383128792f, 0.238752514f, 0.00996008143f, -0.278692573f, 0.383128792f,
     0.114416219f, -0.134336352f, -0.343188673f, 0.238752484f}},
    // muon
    {"muon", 0.1f, true, MuonScale::kMoonshot,
     "h.0.attn.c_proj.weight",
     {-0.371771276f, 0.246767923f, -3.70087146e-05f, -0.239524692f, 0.370505661f, 0.130714104f,
     -0.118792154f, -0.367160946f, 0.241734818f, 0.00441907905f, -0.255880743f, 0.375211418f,
     0.116883054f, -0.127169341f, -0.371828765f, 0.247278392f}},
    // muon, Jordan's scale, 16 rows
    {"muon", 0.1f, true, MuonScale::kJordan,
     "h.0.mlp.c_fc.weight",
     {-0.374612212f, 0.242131054f, 0.00022769066f, -0.227673739f, 0.360791266f, 0.132974178f,
     -0.112462945f, -0.365466893f, 0.241690591f, 0.0153321978f, -0.267058909f, 0.374368489f,
     0.11527995f, -0.128652081f, -0.357300788f, 0.241053715f, 0.0118311821f, -0.239275113f,
     0.373218775f, 0.113495961f, -0.100070402f, -0.392695844f, 0.243994772f, -0.0220931582f,
     -0.255379945f, 0.387041837f, 0.115882859f, -0.115424134f, -0.371181577f, 0.253557593f,
     -0.00897244364f, -0.229447886f, 0.348605156f, 0.11810708f, -0.135905996f, -0.375503421f,
     0.263840675f, -0.00574951107f, -0.240289241f, 0.379560232f, 0.132334009f, -0.134018898f,
     -0.357591301f, 0.22713086f, -0.00148347055f, -0.255374044f, 0.373356432f, 0.145455018f,
     -0.136713788f, -0.364530802f, 0.260665864f, 0.00766184321f, -0.255814433f, 0.388460994f,
     0.106069863f, -0.123136528f, -0.382225066f, 0.244476676f, 0.0158280209f, -0.256451309f,
     0.384959936f, 0.133853659f, -0.124286257f, -0.384009033f}},
      // clang-format on
  };
  return figures;
}

TEST(Figures, AreThoseOfPyTorch) {
  PrepareThread();
  const StageLayout layout({.layers = 1, .hidden = 4, .heads = 1, .sequence = 2, .vocabulary = 2},
                           {0, 1});
  for (const Figures& figures : AllFigures()) {
    const StageTensor& tensor = layout.Find(figures.tensor);
    ASSERT_EQ(static_cast<size_t>(tensor.elements()), figures.expected.size());
    OptimizerOptions options;
    options.name = figures.name;
    options.weight_decay = figures.weight_decay;
    options.nesterov = figures.nesterov;
    options.muon_scale = figures.scale;
    const auto optimizer = MakeOptimizer(options, layout);
    std::vector<float> weights(static_cast<size_t>(layout.size()));
    std::vector<float> gradients(weights.size());
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      weights[static_cast<size_t>(tensor.offset + i)] = static_cast<float>(5 * i % 7 - 3) / 8;
    }
    for (int n = 1; n <= 5; ++n) {
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        gradients[static_cast<size_t>(tensor.offset + i)] =
            static_cast<float>((7 * i + 3 * n) % 11 - 5) / 64;
      }
      optimizer->Step(gradients.data(), weights.data(), weights.data(), 0.01f, n);
    }
    for (size_t i = 0; i < figures.expected.size(); ++i) {
      EXPECT_NEAR(weights[static_cast<size_t>(tensor.offset) + i], figures.expected[i], 1e-6)
          << figures.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace pipelag
