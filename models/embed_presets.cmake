# Makes a C++ source that holds the JSON files models/<folder>/presets/<name>.json as text:
#   cmake -D ROOT=… -D OUTPUT=… -P embed_presets.cmake
file(GLOB presets ${ROOT}/models/*/presets/*.json)
list(SORT presets)
string(CONCAT source "#include \"models/presets.h\"\n\nnamespace pipelag {\n"
  "namespace {\n\nconstexpr Preset kPresets[] = {\n")
foreach(preset IN LISTS presets)
  file(READ ${preset} text)
  get_filename_component(name ${preset} NAME_WLE)
  get_filename_component(folder ${preset} DIRECTORY)
  get_filename_component(folder ${folder} DIRECTORY)
  get_filename_component(folder ${folder} NAME)
  string(APPEND source "    {\"${folder}\", \"${name}\", R\"preset(${text})preset\"},\n")
endforeach()
string(APPEND source "};\n\n}  // namespace\n\n"
  "std::span<const Preset> CompiledPresets() { return kPresets; }\n\n}  // namespace pipelag\n")
file(WRITE ${OUTPUT} "${source}")
