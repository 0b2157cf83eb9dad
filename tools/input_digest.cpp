#include "tools/input_digest.h"

#include <fmt/format.h>

#include <filesystem>

#include "models/file.h"
#include "models/presets.h"

namespace pipelag {
namespace {

constexpr const char* kFolders[] = {"architecture", "hardware"};

}  // namespace

void Fingerprint::AddByte(uint64_t byte) {
  constexpr uint64_t kPrime = 0x100000001b3;
  state_ = (state_ ^ byte) * kPrime;
}

void Fingerprint::Add(std::string_view text) {
  for (const char c : text) AddByte(static_cast<unsigned char>(c));
  for (unsigned shift = 0; shift < 64; shift += 8) AddByte((text.size() >> shift) & 0xff);
}

std::string Fingerprint::Text() const { return fmt::format("{:016x}", state_); }

const std::string& InputDigest::ContentOf(const std::string& name) {
  namespace fs = std::filesystem;
  const auto [entry, fresh] = contents_.try_emplace(name);
  if (!fresh || name.empty()) return entry->second;
  Fingerprint print;
  bool any = false;
  const auto add = [&](std::string_view text) {
    print.Add(text);
    any = true;
  };
  std::error_code ignored;
  if (fs::is_regular_file(name, ignored)) {
    add(ReadFile(name));
    fs::path beside = name;
    if (beside.extension() == ".csv" &&
        fs::is_regular_file(beside.replace_extension(".json"), ignored)) {
      add(ReadFile(beside));
    }
  } else {
    for (const char* folder : kFolders) {
      if (const Preset* preset = FindPreset(folder, name)) add(preset->text);
    }
  }
  if (any) entry->second = print.Text();
  return entry->second;
}

void InputDigest::Add(std::string_view value, Fingerprint& print) {
  for (size_t begin = 0; begin <= value.size();) {
    const size_t end = std::min(value.size(), value.find(',', begin));
    const std::string& content = ContentOf(std::string(value.substr(begin, end - begin)));
    if (!content.empty()) print.Add(content);
    begin = end + 1;
  }
}

}  // namespace pipelag
