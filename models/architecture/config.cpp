#include "models/architecture/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/architecture/families.h"
#include "models/error.h"
#include "models/json_file.h"
#include "models/names.h"
#include "models/presets.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFolder = "architecture";

const Family& FamilyOf(const ConfigKeys& keys) {
  const std::string model_type = keys.Text("model_type");
  const std::vector<std::string_view> known = KnownArchitectures();
  for (const Family& family : Families()) {
    if (family.model_type == model_type) return family;
  }
  keys.Fail("model_type", fmt::format("'{}' is no architecture known here; the nearest is '{}'",
                                      model_type, Nearest(model_type, known)));
}

/// Products of sizes that are each in range may still be beyond 64 bits.
void CheckCountable(const Transformer& model, const std::string& file) {
  constexpr double kMost = 1e15;
  double parameters = static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden);
  for (const Block& block : model.blocks) {
    const Experts& experts = block.experts;
    const double inner = static_cast<double>(experts.routed) * static_cast<double>(experts.ffn) +
                         static_cast<double>(block.ffn + experts.shared_ffn) +
                         static_cast<double>(block.heads) * static_cast<double>(block.head_dim);
    parameters += 3 * inner * static_cast<double>(model.hidden);
  }
  if (parameters > kMost) {
    throw Error(fmt::format("{}: its sizes make more than {} parameters", file, kMost));
  }
}

Transformer Read(const ConfigKeys& keys, const std::string& file) {
  const Family& family = FamilyOf(keys);
  Transformer model = family.read(keys);
  model.architecture = family.model_type;
  CheckCountable(model, file);
  return model;
}

Transformer ReadConfig(const Json& config, const std::string& file) {
  const ConfigKeys keys(config, file, "");
  const auto text = config.find("text_config");
  if (text != config.end() && !config.contains("hidden_size")) {
    return Read(ConfigKeys(*text, file, "/text_config"), file);
  }
  return Read(keys, file);
}

std::string FileOf(const Preset& preset) {
  return fmt::format("models/{}/presets/{}.json", preset.folder, preset.name);
}

Transformer ReadPreset(const Preset& preset) {
  const std::string file = FileOf(preset);
  const Json json = ParseJson(preset.text, file);
  const ConfigKeys keys(json, file, "");
  Transformer model = Read(keys, file);
  model.name = preset.name;
  keys.Text("source");
  for (const std::string& key : keys.Unread()) keys.Fail(key.c_str(), "unknown key");
  return model;
}

std::filesystem::path ConfigFile(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::is_directory(path)) {
    const fs::path file = fs::path(path) / "config.json";
    if (!fs::exists(file)) throw Error(fmt::format("{}: holds no config.json", path));
    return file;
  }
  if (!fs::exists(path)) {
    throw Error(
        fmt::format("'{}' is neither a file nor the name of a known model; the nearest name is "
                    "'{}'",
                    path, NearestPreset(kFolder, path)));
  }
  return path;
}

}  // namespace

Transformer ReadTransformer(const std::string& name_or_path) {
  if (const Preset* preset = FindPreset(kFolder, name_or_path)) return ReadPreset(*preset);
  const std::filesystem::path file = ConfigFile(name_or_path);
  Transformer model = ReadConfig(ReadJson(file), file.string());
  model.name = name_or_path;
  return model;
}

std::vector<TransformerPreset> TransformerPresets() {
  std::vector<TransformerPreset> presets;
  for (const Preset& preset : PresetsOf(kFolder)) {
    const Json json = ParseJson(preset.text, FileOf(preset));
    presets.push_back({preset.name, ConfigKeys(json, FileOf(preset), "").Text("source")});
  }
  return presets;
}

std::vector<std::string_view> KnownArchitectures() {
  std::vector<std::string_view> names;
  for (const Family& family : Families()) names.push_back(family.model_type);
  return names;
}

namespace {

void CheckGpt(const GptShape& shape) {
  const auto check = [](int64_t number, const char* what) {
    if (number < 1) throw Error(fmt::format("a GPT of {} {} cannot be", number, what));
  };
  check(shape.layers, "layers");
  check(shape.hidden, "hidden numbers");
  check(shape.heads, "heads");
  check(shape.vocabulary, "words");
  check(shape.sequence, "tokens");
  if (shape.hidden % shape.heads != 0) {
    throw Error(
        fmt::format("{} heads do not divide the hidden size of {}", shape.heads, shape.hidden));
  }
  if (shape.key_value_heads > 0 && shape.heads % shape.key_value_heads != 0) {
    throw Error(fmt::format("{} heads of keys and values do not divide {} heads",
                            shape.key_value_heads, shape.heads));
  }
}

}  // namespace

Transformer Gpt(const GptShape& shape) {
  CheckGpt(shape);
  Transformer model;
  model.name =
      fmt::format("gpt of {} layers, {} hidden, {} heads", shape.layers, shape.hidden, shape.heads);
  model.architecture = "gpt2";
  model.hidden = shape.hidden;
  model.vocabulary = shape.vocabulary;
  model.context = model.position_rows = shape.sequence;
  model.norm = NormKind::kLayer;
  model.positions = PositionKind::kLearned;
  model.tied = true;
  model.dropout = model.attention_dropout = true;
  Block block;
  block.heads = shape.heads;
  block.key_value_heads = shape.key_value_heads > 0 ? shape.key_value_heads : shape.heads;
  block.head_dim = shape.hidden / shape.heads;
  block.ffn = shape.ffn > 0 ? shape.ffn : 4 * shape.hidden;
  block.qkv_bias = block.output_bias = block.mlp_bias = true;
  model.blocks.assign(static_cast<size_t>(shape.layers), block);
  CheckCountable(model, model.name);
  return model;
}

}  // namespace pipelag
