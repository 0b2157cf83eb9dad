#include "models/presets.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "models/error.h"
#include "models/names.h"

namespace pipelag {

namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace

std::vector<Preset> PresetsOf(std::string_view folder) {
  std::vector<Preset> presets;
  for (const Preset& preset : CompiledPresets()) {
    if (preset.folder == folder) presets.push_back(preset);
  }
  return presets;
}

const Preset* FindPreset(std::string_view folder, std::string_view name) {
  const std::string wanted = Lower(name);
  for (const Preset& preset : CompiledPresets()) {
    if (preset.folder == folder && Lower(preset.name) == wanted) return &preset;
  }
  return nullptr;
}

std::string_view NearestPreset(std::string_view folder, std::string_view name) {
  const std::vector<Preset> presets = PresetsOf(folder);
  CHECK(!presets.empty());
  std::vector<std::string> lowered;
  for (const Preset& preset : presets) lowered.push_back(Lower(preset.name));
  const std::vector<std::string_view> known(lowered.begin(), lowered.end());
  const std::string_view nearest = Nearest(Lower(name), known);
  return FindPreset(folder, nearest)->name;
}

}  // namespace pipelag
