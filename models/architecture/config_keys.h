// The keys of one config.json: read as what they must be, with file and place named for whatever is
// wrong. Knows no architectures.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pipelag {

class ConfigKeys {
 public:
  /// Several names of one thing, the first the usual one.
  using Names = std::initializer_list<const char*>;

  /// `object` outlives it. `path` is its place in `file`: "", "/text_config".
  ConfigKeys(const nlohmann::json& object, std::string file, std::string path);

  /// A whole number from 1 to ten million. Throws Error if none of the names is there.
  int64_t Count(Names names) const;
  /// `otherwise` if it is not there or null.
  int64_t CountOr(Names names, int64_t otherwise) const;
  /// As CountOr, and 0 is allowed.
  int64_t NumberOr(Names names, int64_t otherwise) const;
  bool FlagOr(const char* name, bool otherwise) const;
  double DecimalOr(const char* name, double otherwise) const;
  std::string Text(const char* name) const;
  std::string TextOr(const char* name, const std::string& otherwise) const;
  /// Empty if it is not there or null.
  std::vector<int64_t> Numbers(const char* name) const;
  std::vector<std::string> Texts(const char* name) const;

  /// Throws Error "file: /name: what".
  [[noreturn]] void Fail(const char* name, const std::string& what) const;
  /// Throws Error unless the one divides the other.
  void CheckDivides(int64_t divisor, const char* divisor_name, int64_t whole,
                    const std::string& of_what) const;

  /// Keys that nobody has asked for.
  std::vector<std::string> Unread() const;

 private:
  /// Null if none of the names is there, or its value is null.
  const nlohmann::json* Find(Names names) const;
  int64_t Whole(Names names, const nlohmann::json& value, int64_t least) const;
  const char* Present(Names names) const;

  const nlohmann::json& object_;
  std::string file_;
  std::string path_;
  mutable std::set<std::string> read_;
};

}  // namespace pipelag
