// A fingerprint of what a command reads beside its flags: the files they name, and what is known by
// name without a file. Must not know what any flag is for.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace pipelag {

/// FNV-1a of 64 bits, over texts each of which ends with its length.
class Fingerprint {
 public:
  void Add(std::string_view text);
  std::string Text() const;  ///< 16 hexadecimal digits

 private:
  void AddByte(uint64_t byte);

  uint64_t state_ = 0xcbf29ce484222325;
};

/// Reads every file once.
class InputDigest {
 public:
  /// Adds to `print` what the entries of a flag's value name: a file's content with the text beside
  /// a CSV, or presets of that name. Entries that name nothing are left out.
  void Add(std::string_view value, Fingerprint& print);

 private:
  const std::string& ContentOf(const std::string& name);

  std::map<std::string, std::string> contents_;  ///< fingerprints; empty: it names nothing
};

}  // namespace pipelag
