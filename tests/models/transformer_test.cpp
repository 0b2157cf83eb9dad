// Shapes and their parameters: figures that others published, and what a config.json may say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "models/architecture/config.h"
#include "models/error.h"
#include "models/file.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

struct Published {
  const char* name;
  int64_t parameters;
};

/// Hugging Face's "safetensors" totals of the checkpoints, less what is no weight in them (Llama
/// 2's files hold 64 rotary frequencies per layer); of GPT-2 the sum of its published shapes; of
/// Megatron's the totals behind the sizes of SC21 (arXiv 2104.04473), table 1.
constexpr Published kPublished[] = {
    {"gpt2", 124439808},
    {"gpt2-medium", 354823168},
    {"gpt2-large", 774030080},
    {"gpt2-xl", 1557611200},
    {"Llama-2-7b", 6738417664 - 32 * 64},
    {"Llama-2-70b", 68976653312 - 80 * 64},
    {"Llama-3.1-8B", 8030261248},
    {"Llama-3.1-70B", 70553706496},
    {"Llama-3.1-405B", 405853388800},
    {"Mistral-7B-v0.1", 7241732096},
    {"Mixtral-8x7B", 46702792704},
    {"Mixtral-8x22B", 140630071296},
    {"Qwen2.5-7B", 7615616512},
    {"Qwen2.5-72B", 72706203648},
    {"Qwen3-8B", 8190735360},
    {"Qwen3-30B-A3B", 30532122624},
    {"Qwen3-235B-A22B", 235093634560},
    {"DeepSeek-V3", 671026419200},
    {"gpt-oss-20b", 20914757184},
    {"gpt-oss-120b", 116829156672},
    {"gemma-2b", 2506172416},
    {"gemma-7b", 8537680896},
    {"gemma-2-9b", 9241705984},
    {"opt-125m", 125239296},
    {"opt-350m", 331196416},
    {"opt-175b", 174604468224},
    {"bloom", 176247271424},
    {"falcon-7b", 6921720704},
    {"OLMo-2-7B", 7298617344},
    {"SmolLM3-3B", 3075098624},
    {"megatron-1.7b", 1652230656},
    {"megatron-18.4b", 18449756160},
    {"megatron-145.6b", 145622261760},
    {"megatron-1t", 1008038758400},
};

TEST(Transformer, HasThePublishedNumberOfParameters) {
  for (const auto& [name, parameters] : kPublished) {
    EXPECT_EQ(CountParameters(ReadTransformer(name)).Total(), parameters) << name;
  }
}

TEST(Transformer, OneTokenPassesItsOwnExpertsOnly) {
  // Mixtral: arXiv 2401.04088 says 13B, DeepSeek-V3: arXiv 2412.19437 says 37B.
  EXPECT_EQ(CountParameters(ReadTransformer("Mixtral-8x7B")).active, 12879925248);
  const ParameterCount deepseek = CountParameters(ReadTransformer("DeepSeek-V3"));
  EXPECT_NEAR(static_cast<double>(deepseek.active), 37e9, 1e9);
  const ParameterCount dense = CountParameters(ReadTransformer("Llama-3.1-8B"));
  EXPECT_EQ(dense.active, dense.Total());
}

TEST(Transformer, CountsFurtherPredictionApart) {
  // One block, the projection of 2·7168 to 7168 and three norms.
  const Transformer model = ReadTransformer("DeepSeek-V3");
  const ParameterCount count = CountParameters(model);
  EXPECT_EQ(count.prediction, count.blocks.back() + 2 * 7168 * 7168 + 3 * 7168);
  EXPECT_EQ(count.prediction, 11610068224);
}

TEST(Transformer, EveryPresetSaysWhereItsFiguresAreFrom) {
  EXPECT_GE(TransformerPresets().size(), 40U);
  for (const TransformerPreset& preset : TransformerPresets()) {
    EXPECT_GT(preset.source.size(), 15U) << preset.name;
    const Transformer model = ReadTransformer(std::string(preset.name));
    EXPECT_EQ(model.name, preset.name);
    EXPECT_GT(model.context, 0) << preset.name;
  }
}

TEST(Transformer, ListsEqualBlocksOnce) {
  const auto kinds = [](const char* name) { return EqualBlocks(ReadTransformer(name)); };
  EXPECT_EQ(kinds("gpt2").size(), 1U);
  EXPECT_EQ(kinds("gpt2")[0].size(), 12U);
  EXPECT_EQ(kinds("DeepSeek-V3")[0], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(kinds("gpt-oss-20b")[1][1], 3);
}

TEST(Transformer, IsFoundWhateverTheCaseOfItsName) {
  EXPECT_EQ(ReadTransformer("llama-3.1-8b"), ReadTransformer("Llama-3.1-8B"));
}

TEST(Transformer, OfMegatronByFigures) {
  Transformer model = Gpt({.layers = 24, .hidden = 2304, .heads = 24});
  const Transformer preset = ReadTransformer("megatron-1.7b");
  model.name = preset.name;
  EXPECT_EQ(model, preset);
  // 12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)), SC21 equation 2, and the last norm's 2 h.
  const int64_t h = 2304;
  EXPECT_EQ(CountParameters(model).Total(),
            24 * (12 * h * h + 13 * h) + (51200 + 2048) * h + 2 * h);
  EXPECT_THROW(Gpt({.layers = 2, .hidden = 10, .heads = 3}), Error);
  EXPECT_THROW(Gpt({.layers = 0, .hidden = 10, .heads = 2}), Error);
}

/// A file of its own for each test.
class Config : public testing::Test {
 protected:
  Transformer Read(const std::string& text) {
    WriteFile(File(), text);
    return ReadTransformer(File());
  }

  std::string Complaint(const std::string& text) {
    try {
      Read(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  static std::string File() { return Scratch("config.json"); }
};

/// A dense decoder's keys, with one value or key changed.
std::string Llama(const std::string& key = "", const std::string& value = "") {
  std::map<std::string, std::string> keys = {
      {"model_type", R"("llama")"},      {"hidden_size", "64"},
      {"num_hidden_layers", "3"},        {"num_attention_heads", "8"},
      {"num_key_value_heads", "2"},      {"vocab_size", "100"},
      {"intermediate_size", "96"},       {"rope_theta", "10000.0"},
      {"transformers_version", "\"4\""}, {"max_position_embeddings", "32"}};
  if (value == "absent") {
    keys.erase(key);
  } else if (!key.empty()) {
    keys[key] = value;
  }
  std::string text;
  for (const auto& [name, entry] : keys) {
    text += (text.empty() ? "{\"" : ", \"") + name + "\": " + entry;
  }
  return text + "}";
}

TEST_F(Config, OfADenseDecoderIsCounted) {
  const Transformer model = Read(Llama());
  const ParameterCount count = CountParameters(model);
  EXPECT_EQ(count.embedding, 100 * 64);
  const int64_t block = 64 * (64 + 2 * 16 + 64) + 3 * 64 * 96 + 2 * 64;
  EXPECT_EQ(count.blocks, (std::vector<int64_t>{block, block, block}));
  EXPECT_EQ(count.head, 100 * 64 + 64);
  EXPECT_EQ(CountParameters(Read(Llama("tie_word_embeddings", "true"))).head, 64);
  EXPECT_EQ(CountParameters(Read(Llama("head_dim", "32"))).blocks[0],
            64 * 32 * (8 + 2 * 2 + 8) + 3 * 64 * 96 + 2 * 64);
}

TEST_F(Config, IsReadFromItsFolderToo) {
  const std::filesystem::path folder = std::filesystem::path(File()).replace_extension("d");
  std::filesystem::create_directories(folder);
  WriteFile(folder / "config.json", Llama());
  EXPECT_EQ(ReadTransformer(folder).layers(), 3);
}

TEST_F(Config, OfSeveralModalitiesIsReadForItsText) {
  const Transformer inner = Read(R"({"model_type": "many", "text_config": )" + Llama() + "}");
  EXPECT_EQ(inner.blocks, Read(Llama()).blocks);
  EXPECT_THAT(
      Complaint(R"({"model_type": "many", "text_config": )" + Llama("vocab_size", "absent") + "}"),
      HasSubstr("config.json: /text_config/vocab_size: is missing"));
}

TEST_F(Config, OfGemma3LeavesOutWhatIsUsual) {
  const Transformer model = Read(R"({"model_type": "gemma3", "text_config": {"model_type":
      "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
      "sliding_window": 1024}})");
  // google/gemma-3-4b: 3.88B without the vision tower, arXiv 2503.19786, table 1: 675M + 3209M.
  const ParameterCount count = CountParameters(model);
  EXPECT_NEAR(static_cast<double>(count.embedding), 675e6, 5e6);
  EXPECT_NEAR(static_cast<double>(count.Total() - count.embedding), 3209e6, 1e6);
  EXPECT_EQ(model.blocks[4].window, 1024);
  EXPECT_EQ(model.blocks[5].window, 0);
}

TEST_F(Config, ThatLacksAFigureIsRefused) {
  for (const char* key : {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "vocab_size", "intermediate_size"}) {
    EXPECT_THAT(Complaint(Llama(key, "absent")), HasSubstr(File() + ": /" + key + ": is missing"));
  }
  EXPECT_EQ(Complaint(Llama("max_position_embeddings", "absent")), "");
}

TEST_F(Config, ThatContradictsItselfIsRefused) {
  EXPECT_THAT(Complaint(Llama("num_attention_heads", "6")),
              HasSubstr("/num_attention_heads: 6 does not divide /hidden_size of 64"));
  EXPECT_EQ(Complaint(Llama("hidden_size", "60")),
            File() + ": /num_attention_heads: 8 does not divide /hidden_size of 60");
  EXPECT_THAT(Complaint(Llama("num_key_value_heads", "3")),
              HasSubstr("/num_key_value_heads: 3 does not divide /num_attention_heads of 8"));
  EXPECT_THAT(Complaint(Llama("model_type", R"("lama")")),
              HasSubstr("/model_type: 'lama' is no architecture known here; the nearest is "
                        "'llama'"));
  EXPECT_THAT(Complaint(Llama("vocab_size", "0")), HasSubstr("/vocab_size: must be from 1 to"));
  EXPECT_THAT(Complaint(Llama("vocab_size", "1e3")), HasSubstr("expected a whole number"));
  EXPECT_THAT(Complaint(Llama("vocab_size", "18446744073709551615")), HasSubstr("not 18446744"));
  EXPECT_THAT(Complaint(Llama("tie_word_embeddings", "1")), HasSubstr("expected true or false"));
  EXPECT_THAT(Complaint("[]"), HasSubstr("expected an object, not a list"));
  EXPECT_THAT(Complaint("{\"model_type\": "), HasSubstr("not valid JSON"));
}

TEST_F(Config, OfMoreParametersThanCanBeCountedIsRefused) {
  EXPECT_THAT(Complaint(R"({"model_type": "llama", "hidden_size": 10000000, "vocab_size": 10000000,
                            "num_hidden_layers": 1000, "num_attention_heads": 1,
                            "intermediate_size": 10000000})"),
              HasSubstr("parameters"));
}

TEST_F(Config, SaysWhichLayersHaveExperts) {
  const std::string moe = R"({"model_type": "qwen3_moe", "hidden_size": 64, "vocab_size": 10,
      "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 32, "num_experts": 8,
      "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 2,
      "mlp_only_layers": [3]})";
  const Transformer model = Read(moe);
  std::vector<int64_t> routed;
  for (const Block& block : model.blocks) routed.push_back(block.experts.routed);
  EXPECT_THAT(routed, testing::ElementsAre(0, 8, 0, 0, 0, 8));
  EXPECT_EQ(model.blocks[0].ffn, 32);
  EXPECT_EQ(model.blocks[1].ffn, 0);
  EXPECT_TRUE(model.blocks[0].query_key_norm);
  EXPECT_EQ(model.blocks[0].head_dim, 128);
}

TEST_F(Config, KnowsBothNamesOfDeepSeeksExperts) {
  const std::string text = R"({"model_type": "deepseek_v3", "hidden_size": 64, "vocab_size": 10,
      "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
      "q_lora_rank": null, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
      "v_head_dim": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
      "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, )";
  const Transformer model = Read(text + R"("n_routed_experts": 8, "n_shared_experts": 2})");
  EXPECT_EQ(model.blocks[1].experts.shared_ffn, 32);
  EXPECT_EQ(model.blocks,
            Read(text + R"("num_routed_experts": 8, "num_shared_experts": 2})").blocks);
  const int64_t attention = 64 * 4 * 12 + 64 * 12 + 8 + 8 * 4 * 16 + 4 * 8 * 64;
  const ParameterCount count = CountParameters(model);
  EXPECT_EQ(count.blocks[0], attention + 3 * 64 * 32 + 2 * 64);
  EXPECT_EQ(count.blocks[1], attention + 8 * (64 + 1) + 3 * 64 * (8 * 16 + 32) + 2 * 64);
  EXPECT_THAT(Complaint(text + R"("n_routed_experts": 1})"), HasSubstr("more than there are"));
}

TEST_F(Config, SaysWhichLayersSeeAWindow) {
  const auto windows = [](const Transformer& model) {
    std::vector<int64_t> sizes;
    for (const Block& block : model.blocks) sizes.push_back(block.window);
    return sizes;
  };
  const auto read = [&](const std::string& type, const std::string& more) {
    const std::string text = Llama("model_type", "\"" + type + "\"");
    return Read(text.substr(0, text.size() - 1) + more + "}");
  };
  EXPECT_THAT(windows(read("gemma2", "")), testing::ElementsAre(4096, 0, 4096));
  EXPECT_THAT(windows(read("gemma3_text", R"(, "sliding_window_pattern": 3)")),
              testing::ElementsAre(4096, 4096, 0));
  EXPECT_THAT(windows(read("mistral", R"(, "sliding_window": null)")),
              testing::ElementsAre(0, 0, 0));
  EXPECT_THAT(windows(read("mistral", R"(, "sliding_window": 9)")), testing::ElementsAre(9, 9, 9));
  EXPECT_THAT(windows(read("qwen2", R"(, "sliding_window": 9, "use_sliding_window": true,
                                        "max_window_layers": 2)")),
              testing::ElementsAre(0, 0, 9));
  EXPECT_THAT(windows(read("gemma2", R"(, "sliding_window": 7, "layer_types":
                           ["full_attention", "sliding_attention", "full_attention"])")),
              testing::ElementsAre(0, 7, 0));
  EXPECT_THROW(read("gemma2", R"(, "layer_types": ["full_attention"])"), Error);
}

TEST(ReadTransformer, NamesTheNearestOfAnUnknownName) {
  try {
    ReadTransformer("lama-3.1-8B");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'lama-3.1-8B' is neither a file nor the name of a known "
                                        "model; the nearest name is 'Llama-3.1-8B'"));
  }
  const std::string empty = Scratch("no_config");
  std::filesystem::create_directories(empty);
  EXPECT_THROW(ReadTransformer(empty), Error);
}

}  // namespace
}  // namespace pipelag
