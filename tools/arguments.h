// The words behind `pipelag <subcommand>`, checked against its flags and merged with its job file;
// read as typed values, whose errors name the flag or the place in the job file. Must not know what
// any flag is for.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/units.h"
#include "tools/subcommand.h"

namespace pipelag {

/// What a flag was given, and where.
struct Given {
  std::vector<std::string> items;  ///< one, the entries of a list in a job file, or of each time
                                   ///< that a repeated flag was given
  bool listed = false;             ///< several of these: entries may hold commas
  std::string place;               ///< "--forward", or "job.json: /forward"
};

class Arguments {
 public:
  Arguments(std::map<std::string, Given> given, std::vector<std::string> operands)
      : given_(std::move(given)), operands_(std::move(operands)) {}

  const std::vector<std::string>& operands() const { return operands_; }
  const std::map<std::string, Given>& given() const { return given_; }
  /// The same with one flag as given, in place of what it was.
  Arguments With(const std::string& name, Given value) const;
  Arguments Without(const std::string& name) const;
  bool Has(const std::string& name) const { return given_.contains(name); }
  /// False for a switch, and for a flag whose value was left out.
  bool HasValue(const std::string& name) const;
  /// "--name", or the place in the job file that gave it.
  std::string PlaceOf(const std::string& name) const;

  /// The getters throw Error if the flag was not given or its value is not of the kind.
  std::string Text(const std::string& name) const;
  std::vector<std::string> Texts(const std::string& name) const;
  /// At least 1.
  int64_t Count(const std::string& name) const;
  /// At least 0.
  int64_t Number(const std::string& name) const;
  double Decimal(const std::string& name) const;
  Nanoseconds Duration(const std::string& name) const;
  std::vector<Nanoseconds> Durations(const std::string& name) const;
  /// A list of whole numbers from 0 to a million.
  std::vector<int> SmallNumbers(const std::string& name) const;
  Bytes Size(const std::string& name) const;
  std::vector<Bytes> Sizes(const std::string& name) const;
  Bandwidth Rate(const std::string& name) const;
  /// One of `known`; the error names the nearest.
  std::string Choice(const std::string& name, std::span<const std::string_view> known) const;

  /// The file that a flag names for a result, empty if it was not given. It can be written, and is
  /// none that an operand or another flag names, nor the text beside such a CSV.
  std::string Output(const std::string& name) const;

  /// Text, or `otherwise` if the flag was not given.
  std::string TextOr(const std::string& name, const std::string& otherwise) const;
  int64_t CountOr(const std::string& name, int64_t otherwise) const;
  int64_t NumberOr(const std::string& name, int64_t otherwise) const;

 private:
  const Given& At(const std::string& name) const;
  std::vector<std::pair<std::string, std::string>> Entries(const std::string& name) const;

  std::map<std::string, Given> given_;
  std::vector<std::string> operands_;
};

/// `words` stand behind the subcommand's name. `job_keys` are the names that a job file may hold:
/// the flags of every subcommand that reads one, so that one file serves them all. A flag overrides
/// the job file. Throws Error with one sentence for whatever is not understood.
Arguments ParseArguments(const Subcommand& subcommand, const std::vector<std::string>& words,
                         std::span<const std::string> job_keys);

std::string HelpText(const Subcommand& subcommand);

/// `--format text|json`, and whether JSON was asked for.
Flag FormatFlag();
bool WantsJson(const Arguments& arguments);

}  // namespace pipelag
