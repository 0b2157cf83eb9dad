// `pipelag model` from the outside: names, files, figures, and what is wrong with a user's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
  "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
  "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
  "max_position_embeddings": 32, "torch_dtype": "bfloat16"})";

TEST(Model, AddsUpToItsTotals) {
  const Workplace place;
  for (const char* model : {"DeepSeek-V3 --expert 64 --recompute full",
                            "Llama-3.1-8B --tensor 4 --sequence-parallel --sequence 8192",
                            "gpt2 --attention plain --recompute selective --precision fp32",
                            "--layers 24 --hidden 2304 --heads 24 --microbatch 16"}) {
    const nlohmann::json json = Json(place.Pipelag(std::string("model --format json ") + model));
    int64_t parameters = 0;
    int64_t activation = 0;
    double flops = 0;
    for (const nlohmann::json& row : json["per_layer"]) {
      parameters += row["parameters"].get<int64_t>();
      activation += row["activation_bytes"].get<int64_t>();
      flops += row["flops"]["F"].get<double>();
    }
    EXPECT_EQ(json["parameters"], parameters) << model;
    EXPECT_EQ(json["total"]["activation_bytes"], activation) << model;
    EXPECT_DOUBLE_EQ(json["total"]["flops"]["F"].get<double>(), flops) << model;
    EXPECT_EQ(json["per_layer"].size(), json["layers"].get<size_t>() + 2) << model;
    EXPECT_EQ(json["per_layer"][1]["part"], "block");
    EXPECT_EQ(json["per_layer"][1]["layer"], 0);
  }
}

TEST(Model, IsThatOfItsConfigFile) {
  const Workplace place;
  place.Write("config.json", kConfig);
  const nlohmann::json json = Json(place.Pipelag("model config.json --format json"));
  EXPECT_EQ(json["parameters"], 2 * 100 * 64 + 64 + 3 * (64 * 160 + 3 * 64 * 96 + 128));
  EXPECT_EQ(json["active_parameters"], json["parameters"]);
  EXPECT_EQ(json["microbatch"]["tokens_per_sequence"], 32);
  EXPECT_EQ(Json(place.Pipelag("model . --format json"))["parameters"], json["parameters"]);
}

TEST(Model, IsPrintedByKindsOfBlocks) {
  const Workplace place;
  const Outcome dense = place.Pipelag("model gpt2");
  EXPECT_EQ(dense.exit_code, 0);
  EXPECT_THAT(dense.out, HasSubstr("parameters: 124439808\n"));
  EXPECT_THAT(dense.out, HasSubstr("blocks 0-11"));
  const Outcome mixed = place.Pipelag("model gemma-2-9b");
  EXPECT_THAT(mixed.out, HasSubstr("blocks 0,2,..,40"));
  EXPECT_THAT(mixed.out, HasSubstr("blocks 1,3,..,41"));
  EXPECT_LT(Lines(mixed.out), 20U);
  EXPECT_THAT(place.Pipelag("model DeepSeek-V3").out,
              HasSubstr("37552297472 active per token; 11610068224 more"));
}

TEST(Model, IsListed) {
  const Workplace place;
  const nlohmann::json json = Json(place.Pipelag("list --format json"));
  bool found = false;
  for (const nlohmann::json& model : json["models"]) {
    EXPECT_FALSE(model["summary"].get<std::string>().empty());
    found = found || model["name"] == "Llama-3.1-405B";
  }
  EXPECT_TRUE(found);
}

struct Wrong {
  const char* command;
  const char* sentence;
};

TEST(Model, SaysWhatAnOptimizerHolds) {
  const Workplace place;
  const auto total = [&](const std::string& flags) {
    return Json(place.Pipelag("model gpt2 --format json " + flags)).at("total");
  };
  const int64_t parameters = 124439808;
  const nlohmann::json adamw = total("");
  EXPECT_EQ(adamw.at("weight_bytes"), 2 * parameters);
  EXPECT_EQ(adamw.at("gradient_bytes"), 4 * parameters);
  EXPECT_EQ(adamw.at("optimizer_bytes"), 12 * parameters);
  EXPECT_EQ(total("--precision fp32").at("weight_bytes"), 4 * parameters);
  EXPECT_EQ(total("--precision fp32").at("optimizer_bytes"), 8 * parameters);
  EXPECT_LT(total("--optimizer muon").at("optimizer_bytes"), adamw.at("optimizer_bytes"));
  EXPECT_THAT(place.Pipelag("model gpt2 --optimizer adamm").err, HasSubstr("--optimizer: "));
}

TEST(Model, PrintsNoFigureThatOverflowed) {
  const Workplace place;
  for (const char* flags :
       {"Mixtral-8x7B --expert-capacity 1e300", "Mixtral-8x7B --expert-capacity 1e12",
        "Mixtral-8x7B --expert-capacity 0", "gpt2 --microbatch 10000000 --sequence 10000000",
        "gpt2 --microbatch 1000 --sequence 10000000 --attention plain",
        "--layers 10000000 --hidden 64 --heads 4"}) {
    const Outcome outcome = place.Pipelag(std::string("model ") + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_EQ(outcome.out, "") << flags;
  }
  EXPECT_EQ(place.Pipelag("model --layers 100000 --hidden 64 --heads 4").exit_code, 0);
}

TEST(Model, OfBadInputEndsInOneSentence) {
  const Workplace place;
  place.Write("heads.json", R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 100,
      "num_hidden_layers": 3, "num_attention_heads": 7, "intermediate_size": 96})");
  place.Write("kind.json", R"({"model_type": "qwen4"})");
  place.Write("text.json", "not JSON");
  constexpr Wrong kWrong[] = {
      {"heads.json", "heads.json: /num_attention_heads: 7 does not divide /hidden_size of 64"},
      {"kind.json", "kind.json: /model_type: 'qwen4' is no architecture known here; the nearest"},
      {"text.json", "text.json: not valid JSON"},
      {"Llama-3.1-9B", "the nearest name is 'Llama-3.1-8B'"},
      {"", "--layers is missing"},
      {"--layers 2 --hidden 10 --heads 3", "--heads: 3 heads do not divide the hidden size of 10"},
      {"gpt2 --layers 2", "--layers: the operand says what the network is"},
      {"gpt2 --tensor 5", "tensor parallelism of 5 does not divide 12 heads"},
      {"gpt2 --context 3", "context parallelism of 3 does not divide 1024 tokens"},
      {"gpt2 --recompute some", "--recompute: 'some' is none of none, selective, alternate, full"},
      {"Mixtral-8x7B --expert 3", "expert parallelism of 3 does not divide 8 routed experts"},
      {"Mixtral-8x7B --expert-capacity 0",
       "--expert-capacity: '0' is not a factor from 0.001 to 1000"},
      {"Mixtral-8x7B --tensor 2 --expert-tensor 1", "needs sequence parallelism"},
      {"gpt2 --sequence 99999999", "--sequence: 99999999 is more than"},
  };
  for (const auto& [command, sentence] : kWrong) {
    const Outcome outcome = place.Pipelag(std::string("model ") + command);
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr(sentence)) << command;
    EXPECT_EQ(Lines(outcome.err), 1U) << command;
    EXPECT_EQ(outcome.out, "") << command;
  }
}

}  // namespace
}  // namespace pipelag
