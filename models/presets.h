// What is known by name without a file: the JSON files of the folders called `presets`, compiled
// into the binary. Knows no keys.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace pipelag {

/// One file models/<folder>/presets/<name>.json.
struct Preset {
  std::string_view folder;
  std::string_view name;
  std::string_view text;
};

/// All of them, by folder and name; written by models/embed_presets.cmake.
std::span<const Preset> CompiledPresets();

/// Of "architecture" and the like, by name.
std::vector<Preset> PresetsOf(std::string_view folder);

/// The one of this name, whatever the case of its letters; null if there is none.
const Preset* FindPreset(std::string_view folder, std::string_view name);

/// The known name that is nearest. There must be one.
std::string_view NearestPreset(std::string_view folder, std::string_view name);

}  // namespace pipelag
