// `--precision bf16` from the outside, where the processor has it; where it has not, that it says
// so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Precision : public testing::Test {
 protected:
  static constexpr const char* kSmall =
      " --layers 4 --hidden 16 --heads 2 --sequence 8 --microbatch-size 2 --steps 6"
      " --validation-microbatches 2 --microbatches 4 ";

  void SetUp() override {
    const Outcome outcome =
        place_.Pipelag("run --precision bf16 --backend serial --delay 0" + std::string(kSmall));
    if (outcome.exit_code == 0) return;
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--precision: oneDNN has no products of bfloat16"));
    GTEST_SKIP() << outcome.err;
  }

  json Trained(const std::string& flags) const {
    const Outcome outcome = place_.Pipelag("run --format json" + std::string(kSmall) + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }

  Workplace place_;
};

TEST_F(Precision, IsOneFunctionOnEveryBackend) {
  const json serial = Trained("--precision bf16 --backend serial --delay 0");
  const json threads = Trained("--precision bf16 --schedule interleaved-1f1b --ranks 2 --tied");
  EXPECT_EQ(serial.at("precision"), "bf16");
  EXPECT_EQ(Trained("--precision bf16 --schedule 1f1b --ranks 4").at("weights_sha256"),
            serial.at("weights_sha256"));
  EXPECT_EQ(Trained("--precision bf16 --backend serial --delay 0 --tied").at("weights_sha256"),
            threads.at("weights_sha256"));
  const json wide = Trained("--precision fp32 --backend serial --delay 0");
  EXPECT_EQ(wide.at("precision"), "fp32");
  EXPECT_NE(wide.at("weights_sha256"), serial.at("weights_sha256"));
  EXPECT_EQ(wide.at("weights_sha256"), Trained("--backend serial --delay 0").at("weights_sha256"));
  EXPECT_THAT(
      place_.Pipelag("run --precision bf16 --backend serial --delay 0" + std::string(kSmall)).out,
      HasSubstr("16 channels, products in bf16, "));
}

TEST_F(Precision, StaysWithItsCheckpoints) {
  const std::string way = "--schedule 1f1b --ranks 2 --warmup-steps 1 ";
  const json whole = Trained(way + "--precision bf16 --checkpoint kept --checkpoint-every 3");
  const std::string resume = way + "--resume kept/step-00000003 ";
  EXPECT_EQ(Trained(resume + "--precision bf16").at("weights_sha256"), whole.at("weights_sha256"));
  for (const auto& [flags, expected] : std::vector<std::pair<std::string, std::string>>{
           {resume, "/precision is \"bf16\" there, but absent here"},
           {way + "--precision fp16", "--precision"}}) {
    const Outcome outcome = place_.Pipelag("run" + std::string(kSmall) + flags);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(expected));
  }
}

}  // namespace
}  // namespace pipelag
